//! What is counted of the kernel's requests, for Prometheus: how long each kind took, and what was answered by an error.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use engine::figures::{by_labels, histograms};
use engine::histogram::Histogram;
use file::Error;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

/// What a request that was answered came to.
pub type Outcome = Result<(), Error>;

/// Kinds of requests.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Lookup,
    Getattr,
    Setattr,
    Readlink,
    Make,
    Remove,
    Rename,
    Open,
    Create,
    Read,
    Write,
    Flush,
    Release,
    Fsync,
    Opendir,
    Releasedir,
    Getlk,
    Setlk,
    Readdir,
    Statfs,
    Setxattr,
    Getxattr,
    Listxattr,
    Removexattr,
    Fallocate,
    Lseek,
}

/// What kinds are called, by their numbers.
const KINDS: [&str; Kind::Lseek as usize + 1] = [
    "lookup",
    "getattr",
    "setattr",
    "readlink",
    "make",
    "remove",
    "rename",
    "open",
    "create",
    "read",
    "write",
    "flush",
    "release",
    "fsync",
    "opendir",
    "releasedir",
    "getlk",
    "setlk",
    "readdir",
    "statfs",
    "setxattr",
    "getxattr",
    "listxattr",
    "removexattr",
    "fallocate",
    "lseek",
];

/// Why requests are answered by an error.
const REASONS: [&str; 9] =
    ["not_there", "refused", "lock", "space", "quota", "lost", "damaged", "unavailable", "stale"];

/// The number of a reason.
fn reason(error: &Error) -> usize {
    match error {
        Error::NotFound(_) | Error::NoAttribute(_) => 0,
        Error::Locked | Error::Interrupted | Error::NoLocks => 2,
        Error::NoSpace(_) => 3,
        Error::Quota(_) => 4,
        Error::Lost { .. } => 5,
        Error::Damaged(_) => 6,
        Error::Unavailable(_) => 7,
        Error::LostLock | Error::Stale => 8,
        // What the file system is right to refuse.
        _ => 1,
    }
}

/// Of one kind.
#[derive(Default, Debug)]
struct Requests {
    latency: Histogram,
    failed: [AtomicU64; REASONS.len()],
}

/// The figures of a mount; a clone is the same ones, on any thread.
#[derive(Clone, Debug)]
pub struct FuseMetrics(Arc<[Requests]>);

impl Default for FuseMetrics {
    fn default() -> FuseMetrics {
        FuseMetrics(KINDS.iter().map(|_| Requests::default()).collect())
    }
}

impl FuseMetrics {
    pub(crate) fn answered(&self, kind: Kind, took: Duration, outcome: &Outcome) {
        let requests = &self.0[kind as usize];
        requests.latency.record(took);
        if let Err(error) = outcome {
            requests.failed[reason(error)].fetch_add(1, Relaxed);
        }
    }
}

impl Collector for FuseMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let all = || KINDS.iter().copied().zip(&*self.0);
        let help = "From a request's arrival to its answer; of a lock that is waited for, until it is there.";
        let times = all().map(|(kind, requests)| (kind, &requests.latency));
        histograms(&mut encoder, ("yagura_fuse_request_seconds", help), "request", times)?;
        let failed = all().flat_map(|(kind, requests)| {
            let counts = requests.failed.iter().map(|count| count.load(Relaxed));
            let told = REASONS.into_iter().zip(counts).filter(|(_, count)| *count > 0);
            told.map(move |(reason, count)| ([("request", kind), ("reason", reason)], count))
        });
        let help = "Requests answered by an error. What is not there, refused or locked is in the nature of things.";
        by_labels(&mut encoder, ("yagura_fuse_requests_failed", help), failed)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn each_kind_is_told_with_why_it_failed() {
        let metrics = FuseMetrics::default();
        metrics.answered(Kind::Read, Duration::from_micros(300), &Ok(()));
        metrics.answered(Kind::Write, Duration::from_secs(2), &Err(Error::Quota(String::new())));
        metrics.answered(Kind::Lseek, Duration::from_secs(1), &Err(Error::NotSupported("")));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(metrics));
        let mut text = String::new();
        encode(&mut text, &registry).expect("told");
        for line in [
            "yagura_fuse_request_seconds_sum{request=\"read\"} 0.0003\n",
            "yagura_fuse_request_seconds_count{request=\"write\"} 1\n",
            "yagura_fuse_request_seconds_count{request=\"lookup\"} 0\n",
            "yagura_fuse_requests_failed_total{request=\"write\",reason=\"quota\"} 1\n",
            "yagura_fuse_requests_failed_total{request=\"lseek\",reason=\"refused\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert_eq!(text.matches("yagura_fuse_requests_failed_total").count(), 2, "{text}");
    }
}
