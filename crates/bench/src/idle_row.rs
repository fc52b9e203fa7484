//! `yagura bench wire --rows memory`: what an idle queue pair costs the target in memory.

use std::time::Duration;

use engine::{Reactor, ReactorConfig};
use fabric::host::RemoteNamespace;

use crate::figures::{Aim, Ratio, Row};
use crate::machine;
use crate::process::{self, Server};
use crate::progress::Progress;
use crate::wire_row::{NQN, Options, host_options, namespace, two_cores};

/// Associations that are there before the measurement, so that what grows once has grown.
const WARM_UP: usize = 16;
/// Associations that are measured. Each is two queue pairs: the admin queue's and one for I/O.
const ASSOCIATIONS: usize = 256;
/// What a queue pair may cost.
const ALLOWED_BYTES: f64 = 65_536.0;
/// How long the connections are left alone before the target's memory is read.
const REST: Duration = Duration::from_millis(300);

/// Runs the row: a new target in each round.
pub fn run(options: &Options, progress: &Progress) -> anyhow::Result<Row> {
    let (host_core, target_core) = two_cores()?;
    let mut each = Vec::new();
    progress.begin("connecting idle queues", options.rounds);
    for _ in 0..options.rounds {
        let server = process::target(target_core, NQN, &namespace())?;
        let config = ReactorConfig { core: Some(host_core), ..ReactorConfig::default() };
        let grown = machine::pinned(host_core, || Reactor::run(config, grow(&server)))???;
        each.push(grown as f64 / (2 * ASSOCIATIONS) as f64);
        progress.step()?;
    }
    progress.end();
    let shares: Vec<f64> = each.iter().map(|bytes| bytes / ALLOWED_BYTES).collect();
    let bytes = Ratio::of("bytes of an idle queue pair", &each);
    Ok(Row {
        row: "memory".to_owned(),
        title: "memory of an idle queue pair in the target".to_owned(),
        conditions: vec![
            machine::describe(),
            format!(
                "growth of the target's resident memory (VmRSS) over {ASSOCIATIONS} associations, two queue pairs each"
            ),
            format!("{WARM_UP} associations were there before; nothing but Connect, Identify and features was sent"),
            format!("{} rounds, a new target in each", options.rounds),
        ],
        sides: Vec::new(),
        ratios: vec![Ratio::of("an idle queue pair / 64 KiB", &shares).aim(Aim::AtMost, 1.0), bytes],
        curves: Vec::new(),
    })
}

/// Resident bytes that the idle associations make the target take.
async fn grow(server: &Server) -> anyhow::Result<u64> {
    let mut idle = Vec::new();
    connect(&mut idle, WARM_UP, server.address).await?;
    let before = server.resident_bytes()?;
    connect(&mut idle, ASSOCIATIONS, server.address).await?;
    Ok(server.resident_bytes()?.saturating_sub(before))
}

async fn connect(idle: &mut Vec<RemoteNamespace>, count: usize, address: std::net::SocketAddr) -> anyhow::Result<()> {
    for _ in 0..count {
        idle.push(RemoteNamespace::connect(host_options(address)?).await?);
    }
    engine::time::sleep(REST).await;
    Ok(())
}
