//! The programs of the suite.

mod answers;
mod http;
pub mod loaded;
mod memcached;
mod openssl;
pub mod postgresql;
pub mod redis;
mod sqlite;
mod stress;
mod wire;
mod zstd;

use crate::program::Program;
pub use answers::{python, script};
pub use wire::Wire;

/// All programs, in the order in which they run.
pub fn all() -> Vec<Box<dyn Program>> {
    let mut all: Vec<Box<dyn Program>> = vec![
        Box::new(redis::Redis),
        Box::new(postgresql::PostgreSql),
        Box::new(memcached::Memcached),
        Box::new(zstd::Zstd),
        Box::new(openssl::Speed),
        Box::new(sqlite::Shell),
    ];
    all.extend(answers::all().into_iter().map(|program| Box::new(program) as Box<dyn Program>));
    all.push(Box::new(http::Server::go()));
    all.push(Box::new(http::Server::java()));
    all.extend(stress::all().into_iter().map(|program| Box::new(program) as Box<dyn Program>));
    all
}
