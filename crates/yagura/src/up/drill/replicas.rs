//! What the process that has a volume attached tells of the replicas, in its metrics.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::header::HOST;
use axum::http::{Request, StatusCode};
use tokio::net::TcpStream;

use crate::exchange::{self, Bounds};
use crate::exit::Failure;

/// What the process may take to answer. Chosen: in bytes, some hundred times what it has.
const ANSWER_MAX: Bounds = Bounds { time: Duration::from_secs(10), bytes: 1 << 20 };
/// The state of a replica that is in sync.
const IN_SYNC: u64 = 3;

/// A replica, by slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Replica {
    /// Whether it has all that was acknowledged.
    pub in_sync: bool,
    /// Bytes written to it.
    pub written_bytes: u64,
}

/// Asks for them; this blocks.
pub fn ask(at: SocketAddr) -> Result<Vec<Replica>, Failure> {
    let request = Request::get("/metrics").header(HOST, at.to_string());
    let (status, said) = exchange::ask(TcpStream::connect(at), request, String::new(), &ANSWER_MAX)
        .map_err(|error| Failure::unavailable(format!("the metrics of a volume's host at {at}: {error}")))?;
    if status != StatusCode::OK {
        return Err(Failure::refused(format!("the metrics of a volume's host at {at}: {status}")));
    }
    match replicas(&String::from_utf8_lossy(&said)) {
        replicas if replicas.is_empty() => Err(Failure::refused("the host of a volume tells of no replicas")),
        replicas => Ok(replicas),
    }
}

fn replicas(metrics: &str) -> Vec<Replica> {
    let value = |name: &str, slot: usize| -> Option<u64> {
        let line = format!("yagura_volume_replica_{name}{{slot=\"{slot}\"}} ");
        metrics.lines().find_map(|found| found.strip_prefix(&line))?.parse().ok()
    };
    let replica = |slot| {
        let in_sync = value("state", slot)? == IN_SYNC;
        Some(Replica { in_sync, written_bytes: value("written_bytes", slot)? })
    };
    (0..).map_while(replica).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_read_by_slot() {
        let text = "# HELP x\nyagura_volume_replica_written_bytes{slot=\"0\"} 4096\nyagura_volume_replica_written_bytes{slot=\"1\"} 0\n\
                    yagura_volume_replica_state{slot=\"0\"} 3\nyagura_volume_replica_state{slot=\"1\"} 1\n";
        let expected = [Replica { in_sync: true, written_bytes: 4096 }, Replica { in_sync: false, written_bytes: 0 }];
        assert_eq!(replicas(text), expected);
        assert_eq!(replicas(""), []);
    }
}
