//! Commands of the target from outside: over real sockets, its queues on two reactors.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::common::{Host, subsystem};
use device::Memory;
use engine::sync::mailbox;
use engine::{Buf, Reactor, ReactorConfig, View, task, time};
use fabric::subsystem::{Handed, Target, listen};
use fabric::tcp::Pdu;
use nvme::command::CopyRange;
use nvme::opcode::{AdminOpcode, NvmOpcode};
use nvme::{Completion, Fuse, SglDescriptor, Status, Submission};
use zerocopy::IntoBytes;

const TIME_MAX: Duration = Duration::from_secs(30);
const BLOCK: u32 = 4096;

/// Runs `body` with an admin queue and four I/O queues, which lie on two reactors.
fn with_queues(body: impl AsyncFnOnce(Host, Vec<Host>)) {
    let target = Target::default();
    target.add_subsystem(subsystem(), "SERIAL").expect("new");
    let memory = Memory::new(16 << 20, BLOCK, [3; 16]).expect("a good size");
    target.add_namespace(&subsystem(), 1, memory).expect("new");
    let (sender, receiver) = mailbox::<Handed>(16);
    let other = std::thread::spawn({
        let target = target.clone();
        move || Reactor::run(ReactorConfig::default(), target.serve_handed(receiver)).expect("a reactor")
    });
    Reactor::run(ReactorConfig::default(), async {
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.expect("a free port");
        let address = listener.local_addr();
        let served = task::spawn(async move { target.serve(listener, vec![sender]).await });
        let run = async {
            let admin = Host::admin(address, false, 0).await.expect("connects");
            let mut queues = Vec::new();
            for qid in 1..=4 {
                queues.push(Host::io(address, false, &admin, qid).await.expect("connects"));
            }
            body(admin, queues).await;
        };
        time::timeout(TIME_MAX, run).await.expect("ends in time");
        drop(served);
    })
    .expect("a reactor");
    other.join().expect("it ends when the mailbox is gone");
}

fn command(opcode: NvmOpcode, id: u16, lba: u64, blocks: u32) -> Submission {
    let mut command = Submission::nvm(opcode, id, 1);
    command.set_range(lba, blocks);
    command.sgl = SglDescriptor::transport(blocks * BLOCK);
    command
}

fn filled(blocks: u32, byte: u8) -> View {
    let mut buf = Buf::with_len((blocks * BLOCK) as usize);
    buf.fill(byte);
    buf.freeze()
}

fn abort(sqid: u16, command_id: u16) -> Submission {
    let mut command = Submission::admin(AdminOpcode::ABORT, 9, 0);
    command.cdw10 = (u32::from(command_id) << 16 | u32::from(sqid)).into();
    command.sgl = SglDescriptor::transport(0);
    command
}

/// On every queue, whichever reactor has it: a write whose data has not come is aborted, and writes nothing when it comes.
#[test]
fn a_write_is_aborted_on_any_reactor() {
    with_queues(async |mut admin, mut queues| {
        for (index, queue) in queues.iter_mut().enumerate() {
            let sqid = index as u16 + 1;
            queue.submit(&command(NvmOpcode::WRITE, 70, 0, 32), View::default()).await.expect("sent");
            let Ok(Pdu::R2t(request)) = queue.next_pdu().await else { panic!("the data is asked for") };
            admin.submit(&abort(sqid, 70), View::default()).await.expect("sent");
            // The Abort may still be on its way: it must come before the data does.
            let mut keep_alive = Submission::admin(AdminOpcode::KEEP_ALIVE, 10, 0);
            keep_alive.sgl = SglDescriptor::transport(0);
            admin.submit(&keep_alive, View::default()).await.expect("sent");
            assert_eq!(admin.completion().await.expect("answered").command_id.get(), 10, "the Abort waits");
            time::sleep(Duration::from_millis(20)).await;
            queue.send_asked(&request, filled(32, 7)).await.expect("sent");
            let aborted = queue.completion().await.expect("answered");
            assert_eq!((aborted.command_id.get(), aborted.status()), (70, Status::ABORT_REQUESTED));
            let outcome = admin.completion().await.expect("answered");
            assert_eq!((outcome.status(), outcome.result.get() & 1), (Status::SUCCESS, 0), "it was aborted");
            assert_eq!(queue.read(0, 1).await.expect("answered"), Status::SUCCESS);
            assert!(queue.data.iter().all(|&byte| byte == 0), "nothing was written");
            let late = admin.command(&abort(sqid, 70), View::default()).await.expect("answered");
            assert_eq!((late.status(), late.result.get() & 1), (Status::SUCCESS, 1), "there is nothing left to abort");
        }
    });
}

async fn fused(queue: &mut Host, between: Option<Submission>) -> Vec<Completion> {
    let halves =
        [(NvmOpcode::COMPARE, 1, Fuse::First), (NvmOpcode::WRITE, 2, Fuse::Second)].map(|(opcode, id, fuse)| {
            let mut half = command(opcode, id, 0, 1);
            half.sgl = SglDescriptor::in_capsule(BLOCK);
            half.set_fuse(fuse);
            half
        });
    queue.submit(&halves[0], filled(1, 0)).await.expect("sent");
    if let Some(between) = &between {
        queue.submit(between, View::default()).await.expect("sent");
    }
    queue.submit(&halves[1], filled(1, 5)).await.expect("sent");
    let mut answers = Vec::new();
    for _ in 0..2 + between.iter().len() {
        answers.push(queue.completion().await.expect("answered"));
    }
    answers.sort_by_key(|completion| completion.command_id.get());
    answers
}

#[test]
fn fused_halves_must_be_adjacent_in_their_queue() {
    with_queues(async |_admin, mut queues| {
        let statuses = |answers: &[Completion]| -> Vec<Status> { answers.iter().map(Completion::status).collect() };
        let flush = command(NvmOpcode::FLUSH, 3, 0, 1);
        let apart = fused(&mut queues[0], Some(flush)).await;
        assert_eq!(statuses(&apart), [Status::MISSING_FUSED, Status::MISSING_FUSED, Status::SUCCESS]);
        assert_eq!(queues[1].read(0, 1).await.expect("answered"), Status::SUCCESS);
        assert!(queues[1].data.iter().all(|&byte| byte == 0), "nothing was written");
        // A command of another queue is not between them.
        let together = fused(&mut queues[0], None).await;
        assert_eq!(statuses(&together), [Status::SUCCESS, Status::SUCCESS]);
        let again = fused(&mut queues[1], None).await;
        assert_eq!(again[0].status().kind(), Status::COMPARE_FAILURE);
        assert_eq!(again[1].status(), Status::FAILED_FUSED);
    });
}

#[test]
fn copy_verify_and_write_uncorrectable() {
    with_queues(async |_admin, mut queues| {
        let queue = &mut queues[3];
        for (lba, byte) in [(10, 1), (20, 2)] {
            assert_eq!(queue.write(lba, filled(1, byte)).await.expect("answered"), Status::SUCCESS);
        }
        let source = |lba: u64| CopyRange { lba: lba.into(), ..CopyRange::default() };
        let ranges = [source(20), source(10)];
        let mut copy = Submission::nvm(NvmOpcode::COPY, 4, 1);
        copy.cdw10 = 100.into();
        copy.cdw12 = 1.into();
        copy.sgl = SglDescriptor::in_capsule(64);
        let data = || Buf::copy_from(ranges.as_bytes()).freeze();
        assert_eq!(queue.command(&copy, data()).await.expect("answered").status(), Status::SUCCESS);
        assert_eq!(queue.read(100, 2).await.expect("answered"), Status::SUCCESS);
        assert_eq!((queue.data[0], queue.data[BLOCK as usize]), (2, 1));

        let without_data = |opcode| Submission { sgl: SglDescriptor::transport(0), ..command(opcode, 5, 10, 1) };
        let verify = without_data(NvmOpcode::VERIFY);
        assert_eq!(queue.command(&verify, View::default()).await.expect("answered").status(), Status::SUCCESS);
        let mark = without_data(NvmOpcode::WRITE_UNCORRECTABLE);
        assert_eq!(queue.command(&mark, View::default()).await.expect("answered").status(), Status::SUCCESS);
        let refused = queue.command(&verify, View::default()).await.expect("answered").status();
        assert_eq!(refused.kind(), Status::UNRECOVERED_READ_ERROR);
        let refused = queue.command(&copy, data()).await.expect("answered");
        assert_eq!((refused.status().kind(), refused.result.get()), (Status::UNRECOVERED_READ_ERROR, 1));
    });
}
