//! The work of one thread: orders (transactions that write) and reports (queries that read), mixed at random.

use crate::database::{Database, Statement};
use crate::own::{Slot, clocked};
use anyhow::Result;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows of the items table.
const ITEMS: i64 = 20_000;
/// Orders that are kept: each new one pushes out the oldest, so that the database does not grow.
const KEPT_ORDERS: i64 = 5_000;
/// Lines of an order.
const LINES: i64 = 8;
/// Share of operations that write, percent.
const WRITES_PERCENT: u32 = 30;

/// Runs once after each operation: a progress metric that a tracer can count.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sqlite_load_operation_done(operations: u64) -> u64 {
    SQLITE_LOAD_OPERATIONS.fetch_add(1, Ordering::Relaxed);
    black_box(operations)
}

/// Operations done by all threads: a progress metric that can be read from outside at no cost.
#[unsafe(no_mangle)]
pub static SQLITE_LOAD_OPERATIONS: AtomicU64 = AtomicU64::new(0);

/// The prepared statements of one thread.
pub struct Worker<'d> {
    database: &'d Database,
    random: StdRng,
    next_order: i64,
    oldest_order: i64,
    take_stock: Statement<'d>,
    add_order: Statement<'d>,
    add_line: Statement<'d>,
    drop_lines: Statement<'d>,
    drop_order: Statement<'d>,
    item: Statement<'d>,
    best_sellers: Statement<'d>,
    search: Statement<'d>,
}

/// Creates the tables and fills the items.
pub fn fill(database: &Database, seed: u64) -> Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    database.run(
        "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, price INTEGER, stock INTEGER);
         CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, note TEXT);
         CREATE TABLE lines (order_id INTEGER, item_id INTEGER, amount INTEGER);
         BEGIN;",
    )?;
    let mut insert = database.prepare("INSERT INTO items VALUES (?1, ?2, ?3, 1000000)")?;
    for id in 0..ITEMS {
        insert.bind(1, id)?;
        insert.bind_text(2, &format!("item {:08x} of shelf {}", random.random::<u32>(), id % 97))?;
        insert.bind(3, random.random_range(1..10_000))?;
        insert.rows()?;
    }
    drop(insert);
    database.run(
        "CREATE INDEX items_by_name ON items (name);
         CREATE INDEX lines_by_order ON lines (order_id);
         COMMIT;",
    )
}

impl<'d> Worker<'d> {
    /// Prepares the statements and fills the orders. Workers that share a database take different numbers.
    pub fn new(database: &'d Database, number: u64, seed: u64) -> Result<Worker<'d>> {
        let first = i64::try_from(number)? << 40;
        let mut worker = Worker {
            database,
            random: StdRng::seed_from_u64(seed ^ (number + 1)),
            next_order: first,
            oldest_order: first,
            take_stock: database.prepare("UPDATE items SET stock = stock - ?2 WHERE id = ?1")?,
            add_order: database.prepare("INSERT INTO orders VALUES (?1, ?2, ?3)")?,
            add_line: database.prepare("INSERT INTO lines VALUES (?1, ?2, ?3)")?,
            drop_lines: database.prepare("DELETE FROM lines WHERE order_id = ?1")?,
            drop_order: database.prepare("DELETE FROM orders WHERE id = ?1")?,
            item: database.prepare("SELECT price FROM items WHERE id = ?1")?,
            best_sellers: database.prepare(
                "SELECT sum(l.amount * i.price) AS value FROM lines l JOIN items i ON i.id = l.item_id
                 WHERE l.order_id BETWEEN ?1 AND ?2 GROUP BY i.id % 10 ORDER BY value DESC",
            )?,
            search: database.prepare(
                "SELECT count(*) FROM (SELECT name, price FROM items WHERE id BETWEEN ?1 AND ?2
                 AND name LIKE '%ab%' ORDER BY price)",
            )?,
        };
        // The load is to be steady from its first second on.
        for _ in 0..KEPT_ORDERS {
            worker.order()?;
        }
        Ok(worker)
    }

    /// One operation: an order or a report.
    #[inline(never)]
    pub fn operation(&mut self) -> Result<()> {
        if self.random.random_range(0..100) < WRITES_PERCENT {
            clocked(Slot::Order, || self.order())
        } else {
            clocked(Slot::Report, || self.report())
        }
    }

    /// Sorts of its statements, by SQLite's own count: two queries sort.
    pub fn sorts(&self) -> u64 {
        self.best_sellers.sorts() + self.search.sorts()
    }

    /// Kept whole: these are the functions that a user of the demo will want to see.
    #[inline(never)]
    fn order(&mut self) -> Result<()> {
        let id = self.next_order;
        self.database.run("BEGIN IMMEDIATE")?;
        self.add_order.bind(1, id)?;
        self.add_order.bind(2, self.random.random_range(0..1_000))?;
        self.add_order.bind_text(3, "leave it at the door")?;
        self.add_order.rows()?;
        for _ in 0..LINES {
            let item = self.random.random_range(0..ITEMS);
            let amount = self.random.random_range(1..5);
            self.add_line.bind(1, id)?;
            self.add_line.bind(2, item)?;
            self.add_line.bind(3, amount)?;
            self.add_line.rows()?;
            self.take_stock.bind(1, item)?;
            self.take_stock.bind(2, amount)?;
            self.take_stock.rows()?;
        }
        if id - self.oldest_order >= KEPT_ORDERS {
            self.drop_lines.bind(1, self.oldest_order)?;
            self.drop_lines.rows()?;
            self.drop_order.bind(1, self.oldest_order)?;
            self.drop_order.rows()?;
            self.oldest_order += 1;
        }
        self.next_order += 1;
        self.database.run("COMMIT")
    }

    #[inline(never)]
    fn report(&mut self) -> Result<()> {
        for _ in 0..20 {
            self.item.bind(1, self.random.random_range(0..ITEMS))?;
            black_box(self.item.rows()?);
        }
        let first = self.oldest_order + self.random.random_range(0..KEPT_ORDERS);
        self.best_sellers.bind(1, first)?;
        self.best_sellers.bind(2, first + 20)?;
        black_box(self.best_sellers.rows()?);
        let start = self.random.random_range(0..ITEMS - 300);
        self.search.bind(1, start)?;
        self.search.bind(2, start + 300)?;
        black_box(self.search.rows()?);
        Ok(())
    }
}
