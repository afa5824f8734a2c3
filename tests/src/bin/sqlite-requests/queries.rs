//! The types of requests, and the queries that serve them.

use crate::database::Database;
use anyhow::{Result, bail};
use profiler_tests::requests::Kind;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::hint::black_box;
use std::sync::RwLock;
use std::sync::atomic::{AtomicI64, Ordering};

/// Rows of the items table.
const ITEMS: i64 = 20_000;
/// Orders from the start on; a deletion takes the oldest, so that the database keeps about its size.
const ORDERS: i64 = 4_000;
/// Customers that orders are of.
const CUSTOMERS: i64 = 500;
/// Orders that one deletion takes: as many as are inserted between two, on average.
const DELETED: i64 = 4;

/// Types and their shares, percent. Rare and frequent, cheap and dear are not the same.
pub const KINDS: [(&str, f64); 10] = [
    ("point_read", 30.0),
    ("range_scan", 14.0),
    ("insert_order", 12.0),
    ("join_orders", 10.0),
    ("order_by", 10.0),
    ("aggregate", 8.0),
    ("update_stock", 7.0),
    ("text_search", 4.0),
    ("delete_orders", 3.0),
    ("recursive_path", 2.0),
];

/// What all sessions share besides the database itself.
pub struct Store {
    /// Writers alone, readers together: SQLite's memory file has no queue for those who find it locked.
    lock: RwLock<()>,
    next_order: AtomicI64,
    oldest_order: AtomicI64,
}

/// The types, for the users.
pub fn kinds() -> Vec<Kind> {
    KINDS.iter().map(|(name, share)| Kind::new(name, *share)).collect()
}

/// A length between 1 and `most` whose logarithm is uniform: many short ones, some long ones.
fn length(random: &mut StdRng, most: i64) -> i64 {
    (most as f64).powf(random.random::<f64>()).round() as i64
}

impl Store {
    /// Creates and fills the tables.
    pub fn fill(database: &Database, seed: u64) -> Result<Store> {
        let mut random = StdRng::seed_from_u64(seed);
        database.run(
            "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, price INTEGER, stock INTEGER, parent INTEGER);
             CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city INTEGER);
             CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, note TEXT);
             CREATE TABLE lines (order_id INTEGER, item_id INTEGER, amount INTEGER);
             BEGIN;",
        )?;
        let mut insert = database.prepare("INSERT INTO items VALUES (?1, ?2, ?3, 1000000, ?4)")?;
        for id in 0..ITEMS {
            insert.bind(1, id)?;
            insert.bind_text(2, &format!("item {:08x} of shelf {}", random.random::<u32>(), id % 97))?;
            insert.bind(3, random.random_range(1..10_000))?;
            insert.bind(4, if id == 0 { -1 } else { random.random_range(0..id) })?;
            insert.rows()?;
        }
        drop(insert);
        let mut insert = database.prepare("INSERT INTO customers VALUES (?1, ?2, ?3)")?;
        for id in 0..CUSTOMERS {
            insert.bind(1, id)?;
            insert.bind_text(2, &format!("customer {:08x}", random.random::<u32>()))?;
            insert.bind(3, random.random_range(0..40))?;
            insert.rows()?;
        }
        drop(insert);
        let store =
            Store { lock: RwLock::new(()), next_order: AtomicI64::new(0), oldest_order: AtomicI64::new(0) };
        for _ in 0..ORDERS {
            store.insert(database, &mut random)?;
        }
        database.run(
            "CREATE INDEX lines_by_order ON lines (order_id);
             CREATE INDEX orders_by_customer ON orders (customer);
             COMMIT;",
        )?;
        Ok(store)
    }

    /// Serves one request; statements are prepared for each, as programs do that build their queries.
    pub fn serve(&self, database: &Database, kind: &str, parameter: u64) -> Result<()> {
        let mut random = StdRng::seed_from_u64(parameter);
        let random = &mut random;
        match kind {
            "insert_order" => self.write(database, |d| self.insert(d, random)),
            "update_stock" => self.write(database, |d| update(d, random)),
            "delete_orders" => self.write(database, |d| self.delete(d)),
            _ => {
                // Poisoned only by a panic, which ends the program.
                let _reader = self.lock.read();
                match kind {
                    "point_read" => point_read(database, random),
                    "range_scan" => query(
                        database,
                        "SELECT price, name FROM items WHERE id BETWEEN ?1 AND ?2",
                        range(random, 2_000),
                    ),
                    "join_orders" => {
                        let first = self.oldest_order.load(Ordering::Relaxed) + random.random_range(0..ORDERS);
                        query(
                            database,
                            "SELECT o.id, c.name, i.name, l.amount * i.price FROM orders o
                             JOIN customers c ON c.id = o.customer JOIN lines l ON l.order_id = o.id
                             JOIN items i ON i.id = l.item_id WHERE o.id BETWEEN ?1 AND ?2",
                            [first, first + length(random, 60)],
                        )
                    }
                    "order_by" => query(
                        database,
                        "SELECT id, name, price FROM items WHERE id BETWEEN ?1 AND ?2 ORDER BY price, name LIMIT 20",
                        range(random, 1_500),
                    ),
                    "aggregate" => query(
                        database,
                        "SELECT sum(price), count(*), parent % 50 AS shelf FROM items WHERE id BETWEEN ?1 AND ?2
                         GROUP BY shelf ORDER BY 1 DESC",
                        range(random, 3_000),
                    ),
                    "text_search" => query(
                        database,
                        "SELECT id, name FROM items WHERE id BETWEEN ?1 AND ?2 AND name LIKE '%ab%' ORDER BY name",
                        range(random, 8_000),
                    ),
                    "recursive_path" => query(
                        database,
                        "WITH RECURSIVE path (id, depth) AS (SELECT ?1, 0 UNION ALL
                         SELECT i.parent, depth + 1 FROM items i JOIN path p ON i.id = p.id WHERE i.parent >= 0)
                         SELECT count(*), group_concat(name, '/') FROM path JOIN items USING (id) WHERE depth < ?2",
                        [random.random_range(0..ITEMS), 100],
                    ),
                    _ => bail!("no request {kind}"),
                }
            }
        }
    }

    fn write(&self, database: &Database, work: impl FnOnce(&Database) -> Result<()>) -> Result<()> {
        // Poisoned only by a panic, which ends the program.
        let _writer = self.lock.write();
        database.run("BEGIN IMMEDIATE")?;
        work(database)?;
        database.run("COMMIT")
    }

    fn insert(&self, database: &Database, random: &mut StdRng) -> Result<()> {
        let id = self.next_order.fetch_add(1, Ordering::Relaxed);
        let mut order = database.prepare("INSERT INTO orders VALUES (?1, ?2, ?3)")?;
        order.bind(1, id)?;
        order.bind(2, random.random_range(0..CUSTOMERS))?;
        order.bind_text(3, "leave it at the door")?;
        order.rows()?;
        let mut line = database.prepare("INSERT INTO lines VALUES (?1, ?2, ?3)")?;
        for _ in 0..length(random, 30) {
            line.bind(1, id)?;
            line.bind(2, random.random_range(0..ITEMS))?;
            line.bind(3, random.random_range(1..5))?;
            line.rows()?;
        }
        Ok(())
    }

    fn delete(&self, database: &Database) -> Result<()> {
        let first = self.oldest_order.fetch_add(DELETED, Ordering::Relaxed);
        for sql in [
            "DELETE FROM lines WHERE order_id BETWEEN ?1 AND ?2",
            "DELETE FROM orders WHERE id BETWEEN ?1 AND ?2",
        ] {
            query(database, sql, [first, first + DELETED - 1])?;
        }
        Ok(())
    }
}

/// A range of items, of a length up to `most`.
fn range(random: &mut StdRng, most: i64) -> [i64; 2] {
    let length = length(random, most);
    let first = random.random_range(0..ITEMS - length);
    [first, first + length]
}

fn query(database: &Database, sql: &str, parameters: [i64; 2]) -> Result<()> {
    let mut statement = database.prepare(sql)?;
    statement.bind(1, parameters[0])?;
    statement.bind(2, parameters[1])?;
    black_box(statement.rows()?);
    Ok(())
}

fn point_read(database: &Database, random: &mut StdRng) -> Result<()> {
    let mut statement = database.prepare("SELECT price, stock, name FROM items WHERE id = ?1")?;
    for _ in 0..length(random, 12) {
        statement.bind(1, random.random_range(0..ITEMS))?;
        black_box(statement.rows()?);
    }
    Ok(())
}

fn update(database: &Database, random: &mut StdRng) -> Result<()> {
    let mut statement = database.prepare("UPDATE items SET stock = stock - ?2 WHERE id = ?1")?;
    for _ in 0..length(random, 40) {
        statement.bind(1, random.random_range(0..ITEMS))?;
        statement.bind(2, random.random_range(1..5))?;
        statement.rows()?;
    }
    Ok(())
}
