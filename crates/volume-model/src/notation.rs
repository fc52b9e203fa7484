//! How clients are written, `W,R+R|W`: hosts split by `|`, threads by `+`, operations by `,`. `F` is a flush, `S` a snapshot, `D`
//! deletes one, `G` grows the volume, a digit is the region.

use crate::config::{Config, Op};

/// A configuration with the usual bounds.
pub(crate) fn new(name: &'static str, replicas: usize, clients: &str) -> Config {
    Config::new(name, replicas, clients.split('|').map(|host| host.split('+').map(thread).collect()).collect())
}

fn thread(text: &str) -> Vec<Op> {
    let operation = |text: &str| {
        let region = text.get(1..).and_then(|region| region.parse().ok()).unwrap_or(0);
        match text.as_bytes().first() {
            Some(b'W') => Op::Write(region),
            Some(b'F') => Op::Flush,
            Some(b'S') => Op::Snapshot,
            Some(b'D') => Op::Delete,
            Some(b'G') => Op::Grow,
            _ => Op::Read(region),
        }
    };
    text.split(',').map(operation).collect()
}
