//! What goes on in the background of a target, as `yagura target status` tells it.

use engine::job::Status;
use fabric::subsystem::TargetReport;
use serde::{Deserialize, Serialize};

use crate::output;
use crate::size::Size;

/// All that a target tells of itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StatusReport {
    #[serde(flatten)]
    pub target: TargetReport,
    /// In the order in which they began. A target of before it told of them has none.
    #[serde(default)]
    pub jobs: Vec<JobReport>,
}

/// A job that is under way.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct JobReport {
    pub kind: String,
    /// Of what; empty where that goes without saying.
    pub of: String,
    /// How much of it is done, 0 to 1.
    pub done: f64,
    /// Bytes read since it began.
    pub bytes: u64,
    /// Those that it may read a second; none: as fast as it goes.
    pub bytes_per_second: Option<u64>,
    pub begun_seconds_ago: u64,
}

impl From<Status> for JobReport {
    fn from(job: Status) -> JobReport {
        let Status { kind, of, done, bytes, bytes_per_second, lasted, .. } = job;
        JobReport { kind: kind.to_owned(), of, done, bytes, bytes_per_second, begun_seconds_ago: lasted.as_secs() }
    }
}

impl JobReport {
    /// A line.
    pub fn describe(&self) -> String {
        let JobReport { kind, of, done, bytes, begun_seconds_ago, .. } = self;
        let of = if of.is_empty() { String::new() } else { format!(" of {of}") };
        let (done, read, rate) = (output::percent(*done), Size(*bytes), self.rate());
        format!("{kind}{of}: {done}, {read} read, {rate}, begun {begun_seconds_ago} s ago\n")
    }

    /// How fast it may go.
    pub fn rate(&self) -> String {
        self.bytes_per_second.map_or("as fast as it goes".into(), |rate| format!("at most {}/s", Size(rate)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fabric::subsystem::{Target, TargetConfig};

    use super::*;

    #[test]
    fn a_job_in_words() {
        let of = "/drive".to_owned();
        let lasted = Duration::from_secs(7);
        let status =
            Status { kind: "scrub", of, number: 1, lasted, done: 0.998, bytes: 3 << 20, bytes_per_second: None };
        let unlimited = JobReport::from(status);
        assert_eq!(unlimited.describe(), "scrub of /drive: 99 %, 3 MiB read, as fast as it goes, begun 7 s ago\n");
        let limited = JobReport { of: String::new(), bytes_per_second: Some(64 << 20), ..unlimited };
        assert_eq!(limited.describe(), "scrub: 99 %, 3 MiB read, at most 64 MiB/s, begun 7 s ago\n");
    }

    /// A target that had been started before told nothing of jobs, and a newer program refused its answer.
    #[test]
    fn a_target_that_tells_of_no_jobs_is_understood() {
        let target = Target::new(TargetConfig::default()).report();
        let answer = serde_json::to_value(&target).expect("written");
        let report: StatusReport = serde_json::from_value(answer).expect("read");
        assert_eq!(report, StatusReport { target, jobs: Vec::new() });
    }
}
