//! A volume over real sockets and real files, and on drives, whose namespaces are thin.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use device::{
    AnyNamespace, Drive, Durability, FileNamespace, FileOptions, FormatOptions as DriveFormat, Lba, Namespace,
    NamespaceSpec, conformance,
};
use engine::net::TcpListener;
use engine::task::{self, Task};
use engine::{Buf, Reactor, ReactorConfig, time};
use fabric::subsystem::Target;
use volume::{FormatOptions, NvmeReach, Options, Reach, attach, format};

const BLOCK: usize = 4096;
const NAMESPACE_BYTES: u64 = 24 << 20;

async fn file(path: &Path) -> AnyNamespace {
    let options = FileOptions { create: Some(NAMESPACE_BYTES), ..FileOptions::default() };
    FileNamespace::open(path, &options).await.expect("the file opens").into()
}

async fn on_drive(path: &Path) -> AnyNamespace {
    let options = DriveFormat { create: Some(64 << 20), extent_bytes: 64 << 10, ..DriveFormat::default() };
    let drive = Drive::format(path, &options).await.expect("a drive");
    let spec = NamespaceSpec { name: "a".into(), bytes: NAMESPACE_BYTES, block_size: BLOCK as u32 };
    drive.create(&spec).await.expect("a namespace").into()
}

/// A target that serves a namespace until the task is dropped, and how it is reached.
fn serve(namespace: AnyNamespace, number: usize) -> (Rc<dyn Reach>, Task<()>) {
    let nqn: nvme::Nqn = format!("nqn.2026-01.example.yagura:replica{number}").parse().expect("an NQN");
    let target: Target = Target::default();
    target.add_subsystem(nqn.clone(), "1").expect("a subsystem");
    target.add_namespace(&nqn, 1, namespace).expect("a namespace");
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
    let host = "nqn.2026-01.example.yagura:host".parse().expect("an NQN");
    let reach = NvmeReach::at(listener.local_addr(), nqn, 1, host);
    (Rc::new(reach), task::spawn(async move { match target.serve(listener, Vec::new()).await {} }))
}

fn lives(open: impl AsyncFn(&Path) -> AnyNamespace) {
    let directory = tempfile::tempdir().expect("a directory");
    let main = async {
        let (mut reaches, mut serving) = (Vec::new(), Vec::new());
        for number in 0..3 {
            let namespace = open(&directory.path().join(number.to_string())).await;
            let (reach, task) = serve(namespace, number);
            reaches.push(reach);
            serving.push(task);
        }
        format(reaches.clone(), FormatOptions::default()).await.expect("the files are blank");
        let volume = Rc::new(attach(reaches.clone(), Options::default()).await.expect("all are there"));
        conformance::check_all(Rc::clone(&volume), 3).await;
        let blocks = volume.info().blocks;
        let data = Buf::copy_from(&[7; BLOCK]).freeze();
        volume.write(Lba(blocks - 1), data, Durability::Stable).await.expect("all are there");
        // One is gone for good; the others go on, and the next host finds what is there.
        drop(serving.remove(2));
        volume.write_zeroes(Lba(0), blocks / 2, Durability::Stable).await.expect("two are enough");
        assert!(!volume.in_sync().has(2));
        volume.detach().await.expect("it is attached");
        let volume = attach(reaches, Options::default()).await.expect("two are enough");
        let (result, buf) = volume.read(Lba(blocks - 1), Buf::with_len(BLOCK)).await;
        assert_eq!((result, buf[..] == [7; BLOCK]), (Ok(()), true));
        assert!(volume.verify(None).await.is_ok_and(|report| report.is_clean() && report.regions > 0));
    };
    let bounded = async { time::timeout(Duration::from_secs(60), main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor");
}

#[test]
fn a_volume_over_real_sockets_and_files() {
    lives(file);
}

#[test]
fn a_volume_on_drives() {
    lives(on_drive);
}
