//! Cores and CPU time: pinning, and what a process has used.

use std::time::Duration;

use anyhow::Context as _;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins the calling thread (and what it spawns from now on) to one core.
pub fn pin(core: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("cannot pin a thread to core {core}"))
}

/// Gives the calling thread the lowest priority (a nice value of 19).
pub fn lowest_priority() -> anyhow::Result<()> {
    // In Linux a nice value belongs to the thread that asks.
    rustix::process::setpriority_process(None, 19).context("cannot lower a thread's priority")
}

/// Resident memory of a process in bytes (`/proc/PID/status`, VmRSS).
pub fn resident_bytes(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}: has the process ended?"))?;
    let kib =
        text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("{path} has no VmRSS"))? << 10)
}

/// Descriptors that a process has open.
pub fn open_descriptors(pid: u32) -> anyhow::Result<usize> {
    let path = format!("/proc/{pid}/fd");
    Ok(std::fs::read_dir(&path).with_context(|| format!("cannot read {path}: has the process ended?"))?.count())
}

/// The cores this process may run on, lowest first.
pub fn cores() -> anyhow::Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot read the CPU affinity")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Runs `work` with the calling thread pinned to `core`, and gives the thread its cores back. A process started inside
/// inherits the pin; that is how servers are placed.
pub fn pinned<T>(core: usize, work: impl FnOnce() -> T) -> anyhow::Result<T> {
    let before = sched_getaffinity(None).context("cannot read the CPU affinity")?;
    pin(core)?;
    let result = work();
    sched_setaffinity(None, &before).context("cannot restore the CPU affinity")?;
    Ok(result)
}

/// CPU time that all threads of a process have used so far (`/proc/PID/task/*/schedstat`, nanoseconds).
pub fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let tasks = format!("/proc/{pid}/task");
    let mut nanoseconds = 0u64;
    for task in std::fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}: has the process ended?"))? {
        let path = task?.path().join("schedstat");
        // A thread may end between the listing and the reading.
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let running = text.split_ascii_whitespace().next().context("empty schedstat")?;
        nanoseconds += running.parse::<u64>().with_context(|| format!("{}: {text}", path.display()))?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// A line that says what machine this is.
pub fn describe() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name").and_then(|rest| rest.split_once(':')))
        .map_or("unknown CPU", |(_, name)| name.trim());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let count = cores().map_or(0, |c| c.len());
    format!("{count} cores ({model}), Linux {}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_grows_while_working() {
        let before = cpu_time(std::process::id()).unwrap();
        let mut x = 1u64;
        let begin = std::time::Instant::now();
        // CPU time is counted in ticks of 10 ms, and a busy machine may not let us work for long: wait for it to be seen.
        while cpu_time(std::process::id()).unwrap() == before {
            assert!(begin.elapsed() < Duration::from_secs(20), "20 s of work cost no CPU time");
            x = std::hint::black_box(x.wrapping_mul(3));
        }
    }

    #[test]
    fn pinning_ends_with_the_closure() {
        std::thread::spawn(|| {
            let all = cores().unwrap();
            let inside = pinned(all[0], cores).unwrap().unwrap();
            assert_eq!(inside, vec![all[0]]);
            assert_eq!(cores().unwrap(), all);
        })
        .join()
        .unwrap();
    }
}
