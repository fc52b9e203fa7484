//! Cores and CPU time: pinning, and what a process has used.

use std::time::Duration;

use anyhow::Context as _;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Place of `cutime` in `/proc/PID/stat` after the name; `cstime` is next.
const ENDED_USER_TICKS: usize = 13;
/// Linux tells times to programs in hundredths of a second (`USER_HZ`), whatever the kernel counts in.
const TICK_MILLISECONDS: u64 = 10;

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

/// CPU time that this process has used so far, with its threads that have ended.
pub fn own_cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    // Neither is ever negative in a count of time used.
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or(0))
}

/// CPU time of all processes that this one has started and that have ended, with their threads that had ended before
/// (`/proc/self/stat`, in hundredths of a second). Others that end meanwhile count, too.
pub fn ended_cpu_time() -> anyhow::Result<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
    // The name comes second, in parentheses, and may have anything in it.
    let (_, fields) = text.rsplit_once(") ").context("no name in /proc/self/stat")?;
    let mut fields = fields.split_ascii_whitespace().skip(ENDED_USER_TICKS);
    let mut ticks = || fields.next().and_then(|field| field.parse::<u64>().ok()).context("no times in /proc/self/stat");
    Ok(Duration::from_millis((ticks()? + ticks()?) * TICK_MILLISECONDS))
}

/// CPU time that all threads of another process that have not ended have used so far (`/proc/PID/task/*/schedstat`, nanoseconds).
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

    /// Works until `counted` grows. Some are counted in ticks of 10 ms, and a busy machine may not let us work for long.
    fn work_until_counted(counted: impl Fn() -> Duration) {
        let (before, begin, mut x) = (counted(), std::time::Instant::now(), 1u64);
        while counted() == before {
            assert!(begin.elapsed() < Duration::from_secs(20), "20 s of work cost no CPU time");
            x = std::hint::black_box(x.wrapping_mul(3));
        }
    }

    #[test]
    fn cpu_time_grows_while_working() {
        work_until_counted(|| cpu_time(std::process::id()).unwrap());
    }

    /// A row's clients are threads that have ended when they are counted: they once cost nothing.
    #[test]
    fn a_thread_that_has_ended_counts() {
        let begin = own_cpu_time();
        let worked = std::thread::spawn(move || {
            work_until_counted(|| Duration::from_millis((own_cpu_time() - begin).as_millis() as u64 / 50));
        });
        worked.join().unwrap();
        assert!(own_cpu_time() - begin >= Duration::from_millis(50));
    }

    #[test]
    fn a_program_that_has_ended_counts() {
        let before = ended_cpu_time().unwrap();
        let mut shell = std::process::Command::new("sh");
        let work = shell.args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]).status().unwrap();
        assert!(work.success() && ended_cpu_time().unwrap() > before);
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
