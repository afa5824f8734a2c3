//! The activities that spend the budget, each a client of the arbiter: it owns its state, sees a [`View`], and gives [`Order`]s.
//!
//! No client knows another one. What one of them needs of another comes through the view, the arbiter or an order.

pub mod activity;
pub mod children;
pub mod metric;
pub mod operations;
pub mod overhead;
pub mod reference;
pub mod survey;
pub mod trace;

use crate::run::order::Order;
use crate::run::view::View;

/// An activity.
pub trait Client {
    /// What it can be told beside the view.
    type Input;
    /// What it may spend, as the arbiter grants it.
    type Grant;

    /// What it spends at present, as the ledger will charge it, CPU s/s.
    fn claim(&self) -> f64;

    /// One step: what it was told, what it may spend, what it sees, and where its orders go.
    fn step(&mut self, input: Self::Input, grant: &Self::Grant, view: &View, orders: &mut Vec<Order>);
}
