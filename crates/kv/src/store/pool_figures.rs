//! What a gateway knows of its pool, for whoever wants to be told that a member is gone, or that it is getting full; and whether
//! the gateway can serve.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::figures::{gauge, gauges};
use engine::task::Task;
use engine::time;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{MemberStatus, Store, Usage};

/// How often connections are looked at: readiness follows within this time. Guessed.
const LOOK: Duration = Duration::from_millis(250);
/// How often members without a vote are asked for it. Guessed.
const ASK: Duration = Duration::from_secs(15);
/// How long each may take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// How often a sample of the members is read for how full they are: some megabytes of each. Guessed.
const SAMPLE: Duration = Duration::from_secs(60);
/// A gateway that has not looked for so long does not serve either. Guessed: many times as long.
const LOOK_AGE_MAX: Duration = Duration::from_secs(10);

/// What was last seen.
#[derive(Default)]
struct Seen {
    at: Option<Instant>,
    out_of_reach: Option<String>,
    members: Vec<MemberStatus>,
    usages: Vec<Option<Usage>>,
    epoch: u64,
    voters: usize,
    replicas: u8,
    page_bytes: u64,
    /// Thousandths of the phase of the change under way.
    change: Option<u16>,
    backlog: usize,
}

/// The figures of the pool behind a gateway, as its first reactor sees them.
#[derive(Clone, Default)]
pub struct PoolMetrics(Arc<Mutex<Seen>>);

impl fmt::Debug for PoolMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolMetrics")
    }
}

impl PoolMetrics {
    /// Looks at the pool of `store` from now on, as long as the tasks are kept.
    pub fn watch(&self, store: &Store) -> [Task<()>; 3] {
        // At once: whoever asks next is told.
        self.look(store);
        let (looks, asks, samples) = (self.clone(), store.clone(), self.clone());
        let (looked, sampled) = (store.clone(), store.clone());
        let look = async move {
            loop {
                time::sleep(LOOK).await;
                looks.look(&looked);
            }
        };
        let ask = async move {
            loop {
                asks.ask_members(ANSWER_TIME_MAX).await;
                time::sleep(ASK).await;
            }
        };
        let sample = async move {
            loop {
                samples.sample(&sampled).await;
                time::sleep(SAMPLE).await;
            }
        };
        [engine::task::spawn(look), engine::task::spawn(ask), engine::task::spawn(sample)]
    }

    /// Whether the gateway can serve.
    pub fn ready(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let metrics = self.clone();
        move || {
            let seen = metrics.seen();
            match (&seen.out_of_reach, seen.at) {
                (Some(reason), _) => Err(reason.clone()),
                (None, Some(at)) if at.elapsed() < LOOK_AGE_MAX => Ok(()),
                (None, _) => Err("the gateway does not look at its pool any more".into()),
            }
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, store: &Store) {
        let (map, members, out_of_reach) = (store.map(), store.members(), store.out_of_reach());
        let mut seen = self.seen();
        // tidy: clock: another thread, which has no reactor, tells by the system's clock how long ago that was.
        seen.at = Some(Instant::now());
        seen.out_of_reach = out_of_reach.map(|error| error.to_string());
        seen.members = members;
        (seen.epoch, seen.voters, seen.replicas) = (map.epoch, map.voters(), map.replicas);
        seen.page_bytes = map.page_size.into();
        seen.change = map.change.as_ref().map(|change| change.done);
        seen.backlog = store.repair_backlog();
    }

    async fn sample(&self, store: &Store) {
        let mut usages = Vec::new();
        for index in 0..store.map().members.len() {
            let usage = time::timeout(ANSWER_TIME_MAX, store.usage(index)).await;
            usages.push(usage.ok().and_then(Result::ok));
        }
        self.seen().usages = usages;
    }
}

impl Collector for PoolMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let seen = self.seen();
        let count =
            |which: fn(&MemberStatus) -> bool| seen.members.iter().filter(|member| which(member)).count() as u64;
        let e = &mut encoder;
        for (name, help, value) in [
            ("ready", "1 while the gateway can serve: most of the members that agree on the map are connected.", {
                u64::from(seen.out_of_reach.is_none())
            }),
            ("epoch", "Epoch of the map.", seen.epoch),
            ("replicas", "Copies of each key.", u64::from(seen.replicas)),
            ("members", "Members of the pool.", seen.members.len() as u64),
            ("members_connected", "Members that are connected.", count(|member| member.connected)),
            ("members_voting", "Members that count in quorums.", count(|member| member.votes)),
            ("members_stale", "Members that have missed something and wait for repair.", count(|member| member.stale)),
            ("map_voters", "Members that agree on the map.", seen.voters as u64),
            ("change_in_progress", "1 while the pool's members change.", u64::from(seen.change.is_some())),
            ("repair_backlog_keys", "Keys that wait for repair by themselves.", seen.backlog as u64),
        ] {
            gauge(e, &format!("yagura_pool_{name}"), help, value)?;
        }
        let done = f64::from(seen.change.unwrap_or(0)) / 1000.0;
        let help = "How much of the phase of the change is done.";
        ConstGauge::new(done).encode(e.encode_descriptor(
            "yagura_pool_change_done_ratio",
            help,
            None,
            MetricType::Gauge,
        )?)?;
        per_member(e, "connected", "1 while the member is connected.", &seen.members, |member| {
            Some(u64::from(member.connected))
        })?;
        per_member(e, "voting", "1 while the member counts in quorums.", &seen.members, |member| {
            Some(u64::from(member.votes))
        })?;
        for (name, help, of) in [
            ("table_bytes", "Bytes for records of keys.", (|usage, _| usage.table_bytes) as fn(&Usage, u64) -> u64),
            ("table_used_bytes", "Bytes of records of keys, by a sample.", |usage, _| usage.table_bytes_used),
            ("heap_bytes", "Bytes for long values.", |usage, page| usage.heap_pages * page),
            ("heap_used_bytes", "Bytes of long values, by a sample.", |usage, page| usage.heap_pages_used * page),
        ] {
            let (usages, page) = (&seen.usages, seen.page_bytes);
            per_member(e, name, help, &seen.members, |member| {
                usages.get(member.index).copied().flatten().map(|usage| of(&usage, page))
            })?;
        }
        Ok(())
    }
}

/// A gauge of each member of which it is known.
fn per_member(
    e: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    members: &[MemberStatus],
    value: impl Fn(&MemberStatus) -> Option<u64>,
) -> fmt::Result {
    let known = members.iter().filter_map(|member| Some(([("member", member.index)], value(member)?)));
    gauges(e, (&format!("yagura_pool_member_{name}"), help), known)
}
