//! `yagura bench kv-scale`: row B5. Rates against the number of hosts and of members, in virtual time, over members of a bounded
//! rate; and the messages of an update, counted, beside counting models of two-phase commit and of an owner for each key.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use device::Memory;
use engine::rng::SplitMix;
use engine::sim::{SimConfig, World};
use kv::{Store, Value};
use pool::{CreateOptions, NewMember};

use crate::figures::{Aim, Ratio, Row, Sample, Side};
use crate::load::closed_loops;
use crate::messages::{Tally, owner_per_key, two_phase_commit};
use crate::metered::Metered;
use crate::progress::Progress;
use crate::workload::key_bytes;

/// Replicas of each key, where there are as many members.
const REPLICAS: usize = 3;
/// One way to a member. Chosen: a switched network.
const ONE_WAY: Duration = Duration::from_micros(20);
/// What a member needs for a command where members are counted: 20,000 a second, so that some hosts load nine of them.
const SLOW_SERVICE: Duration = Duration::from_micros(50);
/// The same where hosts are counted: 200,000 a second, more than the hosts ask for, so that more of them can add.
const FAST_SERVICE: Duration = Duration::from_micros(5);
/// Requests that each host has under way.
const DEPTH: usize = 32;
/// Bytes of a value: several fit a page.
const VALUE_BYTES: usize = 400;
/// Keys, uniformly picked: what is measured is members, not popularity.
const KEYS: u64 = 4096;
const MEMBER_BYTES: u64 = 16 << 20;
/// Numbers of hosts, on [`REPLICAS`] members.
const HOSTS: [usize; 4] = [1, 2, 4, 8];
/// Numbers of members, under the most hosts.
const MEMBERS: [usize; 5] = [1, 3, 5, 7, 9];
/// Requests that each host has under way where hosts are counted.
const HOST_DEPTH: usize = 1;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Worlds, each with a seed of its own.
    pub rounds: usize,
    /// Virtual time of each.
    pub time: Duration,
}

/// One measurement.
#[derive(Clone, Copy)]
struct Trial {
    hosts: usize,
    members: usize,
    /// Requests that each host has under way.
    depth: usize,
    service: Duration,
    write: bool,
}

/// A series of trials: rates against a number.
struct Series {
    trials: Vec<Trial>,
    sides: Vec<Side>,
    /// Commands of an operation, by trial and round.
    commands: Vec<Vec<f64>>,
}

/// Runs the row.
pub fn run(options: Options, progress: &Progress) -> anyhow::Result<Row> {
    let hosts_most = HOSTS[HOSTS.len() - 1];
    let mut series = Vec::new();
    for write in [false, true] {
        let by_hosts =
            HOSTS.map(|hosts| Trial { hosts, members: REPLICAS, depth: HOST_DEPTH, service: FAST_SERVICE, write });
        let by_members =
            MEMBERS.map(|members| Trial { hosts: hosts_most, members, depth: DEPTH, service: SLOW_SERVICE, write });
        series.push([Series::new(&by_hosts), Series::new(&by_members)]);
    }
    progress.begin("simulating", options.rounds * series.len() * (HOSTS.len() + MEMBERS.len()));
    for round in 0..options.rounds {
        for series in series.iter_mut().flatten() {
            series.measure(round as u64 + 1, options.time, progress)?;
        }
    }
    progress.end();
    let mut ratios = Vec::new();
    for ([by_hosts, by_members], what) in series.iter().zip(["reads", "updates"]) {
        let growth = |series: &Series, from: usize, to: usize| series.rate_over(to, from);
        ratios
            .push(growth(by_hosts, 0, 3).named(format!("{what}: rate of 8 hosts / of 1")).aim(Aim::AtLeast, 0.9 * 8.0));
        ratios.push(
            growth(by_members, 1, 4).named(format!("{what}: rate of 9 members / of 3")).aim(Aim::AtLeast, 0.9 * 3.0),
        );
    }
    ratios.extend(messages(&series[1][0].commands[0]));
    Ok(Row {
        row: "B5".into(),
        title: "key-value store against hosts and members, virtual time".into(),
        conditions: conditions(options),
        sides: series.into_iter().flatten().flat_map(|series| series.sides).collect(),
        ratios,
        curves: Vec::new(),
    })
}

fn conditions(options: Options) -> Vec<String> {
    vec![
        format!("simulated: {ONE_WAY:?} to a member, some of its time for each command, {ONE_WAY:?} back"),
        format!("{REPLICAS} replicas (1 on one member); values of {VALUE_BYTES} bytes, {KEYS} keys, picked uniformly"),
        format!(
            "hosts: {HOST_DEPTH} request under way each, on {REPLICAS} members that need {FAST_SERVICE:?} a command"
        ),
        format!("members: {SLOW_SERVICE:?} a command, under 8 hosts with {DEPTH} requests each"),
        format!("{} worlds of {:?} each; latencies are virtual, CPU time is not taken", options.rounds, options.time),
        "messages of an update: ours counted, the others' by models of the case without faults (messages.rs)".into(),
    ]
}

/// What an update costs: ours as counted, and by the models for as many replicas and 8 hosts.
fn messages(commands: &[f64]) -> Vec<Ratio> {
    let hosts = HOSTS[HOSTS.len() - 1];
    let ours: Vec<f64> = commands.iter().map(|commands| 2.0 * commands).collect();
    let mut ratios = vec![
        Ratio::of("update: messages between hosts", &vec![0.0; ours.len()]).aim(Aim::AtMost, 0.0),
        Ratio::of("update: messages to devices", &ours).aim(Aim::AtMost, 4.0 * REPLICAS as f64 + 0.01),
    ];
    for (name, tally) in [
        ("two-phase commit (model)", two_phase_commit(REPLICAS, hosts)),
        ("owner per key (model)", owner_per_key(REPLICAS, hosts)),
    ] {
        let Tally { between_hosts, to_devices, round_trips } = tally;
        ratios.push(Ratio::of(format!("{name}: messages between hosts"), &[between_hosts]));
        ratios.push(Ratio::of(format!("{name}: messages to devices"), &[to_devices]));
        ratios.push(Ratio::of(format!("{name}: round trips in series"), &[round_trips]));
    }
    ratios
}

impl Series {
    fn new(trials: &[Trial]) -> Series {
        Series {
            trials: trials.to_vec(),
            sides: trials.iter().map(|trial| Side::new(trial.name())).collect(),
            commands: vec![Vec::new(); trials.len()],
        }
    }

    fn measure(&mut self, seed: u64, time: Duration, progress: &Progress) -> anyhow::Result<()> {
        for (trial, (side, commands)) in self.trials.iter().zip(self.sides.iter_mut().zip(&mut self.commands)) {
            let world = World::new(seed, SimConfig::default());
            let ended = world.run_until(trial.run(time)).map_err(|stalled| anyhow::anyhow!("{stalled:?}"))?;
            let (sample, each) = ended?;
            side.rounds.push(sample);
            commands.push(each);
            progress.step()?;
        }
        Ok(())
    }

    fn rate_over(&self, ours: usize, theirs: usize) -> Ratio {
        Ratio::new("", &self.sides[ours], &self.sides[theirs], |sample| sample.rate)
    }
}

impl Trial {
    fn name(&self) -> String {
        let what = if self.write { "update" } else { "read" };
        format!("{what}: {} host(s), {} member(s), depth {}", self.hosts, self.members, self.depth)
    }

    /// The sample, and the commands that an operation took on all members together.
    async fn run(self, time: Duration) -> anyhow::Result<(Sample, f64)> {
        let mut members = Vec::new();
        for index in 0..self.members {
            let memory = Memory::new(MEMBER_BYTES, 4096, [index as u8 + 1; 16])?;
            members.push(Metered::new(memory, ONE_WAY, self.service));
        }
        let new = |member: &Rc<Metered>| NewMember::at(member.clone(), "nqn.2026-11.io.yagura:bench-kv", 1, Vec::new());
        let new: Vec<_> = members.iter().map(new).collect();
        let replicas = REPLICAS.min(self.members) as u8;
        let map = pool::create(&new, &CreateOptions { replicas, ..CreateOptions::default() }, |_| ()).await?;
        let host = |_| Store::new(map.clone(), members.iter().cloned().map(Some).collect());
        let hosts: Rc<Vec<_>> = Rc::new((0..self.hosts).map(host).collect());
        for number in 0..KEYS {
            hosts[0].put(&key_bytes(number), Value::copy_from(&[number as u8; VALUE_BYTES])).await?;
        }
        hosts[0].settle().await;
        let sent = || members.iter().map(|member| member.commands()).sum::<u64>();
        let before = sent();
        let random = Rc::new(RefCell::new(SplitMix(self.members as u64)));
        let (clients, write) = (self.hosts * self.depth, self.write);
        let shared = Rc::clone(&hosts);
        let outcome = closed_loops(clients, 1, time, async move |client| {
            let key = key_bytes(random.borrow_mut().below(KEYS));
            let store = &shared[client % shared.len()];
            if write {
                store.put(&key, Value::copy_from(&[client as u8; VALUE_BYTES])).await?;
            } else {
                store.get(&key).await?.context("a loaded key is missing")?;
            }
            Ok(0)
        });
        let outcome = outcome.await?;
        for host in hosts.iter() {
            host.settle().await;
        }
        let sample = Sample::new(&outcome.all(), outcome.wall, Duration::ZERO, None);
        let each = (sent() - before) as f64 / sample.operations.max(1) as f64;
        Ok((sample, each))
    }
}
