//! Debian's Ceph as small as it goes on one machine: one monitor, one manager, and an OSD (BlueStore) on a file for each replica.
//! Everything is on loopback and below one folder, without authentication, and ends with [`Cluster`].

use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use uuid::Uuid;

use crate::machine;
use crate::process::{bounded, free_port};
use crate::progress::Progress;

const POOL: &str = "bench";
/// Placement groups. Chosen: ten for each OSD, as its documentation advises for so few.
const PLACEMENT_GROUPS: &str = "32";
/// Bytes that an OSD may hold in memory. Chosen: a third of what a machine of 4 GiB has; Ceph refuses less than about this.
const OSD_MEMORY_BYTES: u64 = 1 << 30;
/// How long anything of it may take to begin. Chosen: ten times what it took on two cores.
const START_TIME_MAX: Duration = Duration::from_secs(120);
/// Seconds that one question may take until it is answered by a monitor, as its tools are told.
const QUESTION_SECONDS: &str = "20";
/// How long one of its tools may take: some wait for OSDs without a limit. Chosen: ten times what the slowest, which makes the
/// files of an OSD, took on two busy cores.
const TOOL_TIME_MAX: Duration = Duration::from_secs(60);

/// What `timeout` exits with where there is no such program.
const NOT_FOUND: i32 = 127;

/// A running cluster with a pool of replicated block images.
pub struct Cluster {
    folder: PathBuf,
    daemons: Vec<Child>,
}

impl Cluster {
    /// Starts one below `folder` that keeps `replicas` copies, each on a file of so many bytes.
    pub fn start(folder: &Path, replicas: usize, osd_bytes: u64, progress: &Progress) -> anyhow::Result<Cluster> {
        progress.begin("starting Ceph", replicas + 2);
        let mut cluster = Cluster { folder: folder.to_owned(), daemons: Vec::new() };
        for place in ["run", "log", "mon", "mgr"] {
            fs::create_dir_all(folder.join(place))?;
        }
        let (fsid, address) = (Uuid::new_v4(), format!("[v2:127.0.0.1:{}]", free_port()?));
        fs::write(cluster.configuration(), settings(folder, fsid, &address, replicas, osd_bytes))?;
        let monmap = folder.join("monmap").display().to_string();
        let fsid = fsid.to_string();
        cluster.run("monmaptool", &["--create", "--clobber", "--fsid", &fsid, "--addv", "a", &address, &monmap])?;
        cluster.run("ceph-mon", &["--mkfs", "-i", "a", "--monmap", &monmap])?;
        cluster.launch("ceph-mon", "a")?;
        cluster.wait("the monitor", &["mon", "stat"], progress, |_| true)?;
        progress.step()?;
        fs::create_dir_all(folder.join("mgr/x"))?;
        cluster.launch("ceph-mgr", "x")?;
        for osd in 0..replicas {
            let (uuid, id) = (Uuid::new_v4().to_string(), osd.to_string());
            fs::create_dir_all(folder.join(format!("osd{osd}")))?;
            let given = cluster.ask(&["osd", "new", &uuid])?;
            anyhow::ensure!(given.trim() == id, "Ceph calls OSD {id} {given}");
            cluster.run("ceph-osd", &["--mkfs", "-i", &id, "--osd-uuid", &uuid])?;
            cluster.launch("ceph-osd", &id)?;
            progress.step()?;
        }
        let all = format!("\"num_up_osds\":{replicas}");
        let are_up = |said: &str| said.replace(' ', "").contains(&all);
        cluster.wait("its OSDs", &["osd", "stat", "--format", "json"], progress, are_up)?;
        let pool = ["osd", "pool", "create", POOL, PLACEMENT_GROUPS, PLACEMENT_GROUPS, "replicated"];
        cluster.ask(&[&pool[..], &["--autoscale-mode=off"]].concat())?;
        cluster.ask(&["osd", "pool", "set", POOL, "size", &replicas.to_string()])?;
        cluster.ask(&["osd", "pool", "application", "enable", POOL, "rbd"])?;
        progress.step()?;
        Ok(cluster)
    }

    /// Makes an image.
    pub fn image(&self, name: &str, bytes: u64) -> anyhow::Result<()> {
        self.run("rbd", &["create", "--size", &format!("{}M", bytes >> 20), &format!("{POOL}/{name}")]).map(drop)
    }

    /// fio on an image, with whatever else it is told; killed after `limit`.
    pub fn fio(&self, image: &str, limit: Duration) -> Command {
        let mut fio = bounded("fio", limit);
        fio.env("CEPH_CONF", self.configuration()).args(["--ioengine=rbd", "--clientname=admin"]);
        fio.args([format!("--pool={POOL}"), format!("--rbdname={image}")]);
        fio
    }

    /// CPU time that all of its daemons have used so far.
    pub fn cpu_time(&self) -> anyhow::Result<Duration> {
        self.daemons.iter().map(|daemon| machine::cpu_time(daemon.id())).sum()
    }

    fn configuration(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = bounded(program, TOOL_TIME_MAX);
        command.env("CEPH_CONF", self.configuration()).args(arguments);
        let output = command.output().context("cannot start timeout, of Debian's coreutils")?;
        let why = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(
            output.status.code() != Some(NOT_FOUND),
            "there is no {program}: scripts/deps.sh ceph installs Ceph"
        );
        anyhow::ensure!(output.status.success(), "{program} {arguments:?}: {}: {why}", output.status);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn ask(&self, question: &[&str]) -> anyhow::Result<String> {
        self.run("ceph", &[&["--connect-timeout", QUESTION_SECONDS], question].concat())
    }

    fn launch(&mut self, program: &str, id: &str) -> anyhow::Result<()> {
        let said = fs::File::create(self.folder.join("log").join(format!("{program}.{id}")))?;
        let mut command = Command::new(program);
        // In the foreground, so that the process is ours to end; in a group of its own, so that a ^C at the terminal ends the row
        // first, whose clients would wait for it.
        command.args(["-f", "-i", id]).process_group(0).env("CEPH_CONF", self.configuration());
        command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
        self.daemons.push(command.spawn().with_context(|| format!("cannot start {program}"))?);
        Ok(())
    }

    fn wait(
        &self,
        what: &str,
        question: &[&str],
        progress: &Progress,
        is_so: impl Fn(&str) -> bool,
    ) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            progress.stop.check()?;
            match self.ask(question) {
                Ok(said) if is_so(&said) => return Ok(()),
                answer if begin.elapsed() > START_TIME_MAX => anyhow::bail!("{what} of Ceph: not up yet: {answer:?}"),
                _ => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // A kill fails only where the process has ended by itself; the wait reaps it in both cases.
            drop(daemon.kill());
            drop(daemon.wait());
        }
    }
}

fn settings(folder: &Path, fsid: Uuid, monitor: &str, replicas: usize, osd_bytes: u64) -> String {
    let at = |place: &str| folder.join(place).display().to_string();
    let sections: [(&str, Vec<(&str, String)>); 5] = [
        (
            "global",
            vec![
                ("fsid", fsid.to_string()),
                ("mon_host", monitor.to_owned()),
                ("public_network", "127.0.0.0/8".into()),
                ("cluster_network", "127.0.0.0/8".into()),
                ("ms_bind_msgr1", "false".into()),
                ("ms_bind_ipv6", "false".into()),
                ("auth_cluster_required", "none".into()),
                ("auth_service_required", "none".into()),
                ("auth_client_required", "none".into()),
                ("auth_allow_insecure_global_id_reclaim", "false".into()),
                ("admin_socket", at("run/$type.$id.$pid.asok")),
                ("log_file", at("log/$type.$id.log")),
                ("run_dir", at("run")),
                ("crash_dir", at("run")),
                ("osd_pool_default_size", replicas.to_string()),
                // Replicas on one machine.
                ("osd_crush_chooseleaf_type", "0".into()),
                ("mon_warn_on_pool_no_redundancy", "false".into()),
                ("mon_cluster_log_file", at("log/cluster.log")),
            ],
        ),
        // Without it a write waits for what it says it waits for.
        (
            "client",
            vec![("rbd_cache", "false".into()), ("log_file", "/dev/null".into()), ("admin_socket", String::new())],
        ),
        ("mon", vec![("mon_data", at("mon/$id")), ("mon_data_avail_crit", "0".into())]),
        ("mgr", vec![("mgr_data", at("mgr/$id")), ("mgr_initial_modules", String::new())]),
        (
            "osd",
            vec![
                ("osd_data", at("osd$id")),
                ("osd_objectstore", "bluestore".into()),
                ("osd_memory_target", OSD_MEMORY_BYTES.to_string()),
                ("bluestore_block_size", osd_bytes.to_string()),
                ("bluestore_block_create", "true".into()),
            ],
        ),
    ];
    let mut text = String::new();
    for (name, settings) in sections {
        let _ = writeln!(text, "[{name}]");
        for (key, value) in settings {
            let _ = writeln!(text, "{key} = {value}");
        }
    }
    text
}
