//! A class that is kept attached.

use crate::adapt::spending::TakenTime;
use crate::class::ClassId;
use crate::run::view::operations::Hits;

/// What a class is to operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It begins this operation, or is it; or it ends it.
    Bound {
        /// The operation's number.
        operation: u32,
        /// It ends it.
        ends: bool,
    },
    /// It is called inside operations.
    Inner {
        /// It makes the measure: without it nothing is recorded.
        measures: bool,
    },
}

/// A class of operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationClass {
    /// Which.
    pub id: ClassId,
    /// Name of the function or probe.
    pub name: String,
    /// What it is.
    pub role: Role,
}

/// Where a class stands in the client's lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    /// Among inner functions.
    Inner(usize),
    /// Among bounds.
    Bound(usize),
}

/// A class that is kept attached.
#[derive(Debug)]
pub(super) struct KeptClass {
    pub class: OperationClass,
    /// Not before this time, ktime ns.
    pub next_ns: u64,
    /// The breaker took it off so many times in a row.
    pub trips: u32,
    /// So many times in a row it was not there when it was to be attached, and that was the last: it is left out until modules come.
    pub missed: u32,
    pub is_left_out: bool,
    /// Its own quota has ended its window, and that was not looked at yet.
    pub tripped: bool,
    /// Hits when quotas were given last, and what it took.
    pub seen: Hits,
    pub taken: TakenTime,
    /// Hits at the last revision.
    pub revised: Hits,
    /// How often inner functions had used up quotas when this one was seen off last.
    pub losses: u64,
}

impl KeptClass {
    pub fn new(class: OperationClass) -> Self {
        Self {
            class,
            next_ns: 0,
            trips: 0,
            missed: 0,
            is_left_out: false,
            tripped: false,
            seen: Hits::default(),
            taken: TakenTime::default(),
            revised: Hits::default(),
            losses: 0,
        }
    }

    /// It begins or ends this operation.
    pub fn bounds(&self, number: u32) -> bool {
        matches!(self.class.role, Role::Bound { operation, .. } if operation == number)
    }

    /// It ends operations.
    pub fn ends(&self) -> bool {
        matches!(self.class.role, Role::Bound { ends: true, .. })
    }

    /// Nothing is recorded without it.
    pub fn measures(&self) -> bool {
        self.class.role == Role::Inner { measures: true }
    }

    /// The operation that it bounds.
    pub fn operation(&self) -> Option<u32> {
        match self.class.role {
            Role::Bound { operation, .. } => Some(operation),
            Role::Inner { .. } => None,
        }
    }
}
