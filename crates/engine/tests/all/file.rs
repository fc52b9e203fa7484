//! Files on the real reactor, direct and buffered. (Block devices take the same path but for opening.)

use std::os::fd::AsRawFd;
use std::{cell::Cell, future::Future, io::ErrorKind, path::Path, rc::Rc, task::Poll, time::Duration};

use engine::{
    Buf, Reactor, ReactorConfig, View,
    file::{File, Lifetime, OpenOptions},
    task,
    time::{self, timeout},
};

const SIZE: u64 = 8 << 20;

fn run<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { timeout(Duration::from_secs(20), main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

fn create(path: &Path, direct: bool) -> File {
    File::open(path, &OpenOptions { create: Some(SIZE), direct, ..OpenOptions::default() }).expect("created")
}

async fn read(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let (result, buf) = file.read_at(offset, Buf::with_len(len)).await;
    result.expect("read");
    buf.to_vec()
}

/// A megabyte (not on the stack).
fn filled(byte: u8) -> View {
    let mut buf = Buf::with_len(1 << 20);
    buf.fill(byte);
    buf.freeze()
}

fn both(test: impl AsyncFn(File)) {
    for direct in [true, false] {
        let directory = tempfile::tempdir().expect("a directory");
        let file = create(&directory.path().join("medium"), direct);
        assert!(!file.is_block_device() && file.size() == SIZE && file.logical_block_size().is_power_of_two());
        run(test(file));
    }
}

/// The kernel has the hint, as `fcntl` tells anybody who has the file open.
#[test]
fn a_lifetime_is_told_to_the_kernel() {
    const F_GET_RW_HINT: libc::c_int = 1024 + 11;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("medium");
    let file = create(&path, true);
    let other = std::fs::File::open(&path).expect("opened");
    for (lifetime, expected) in [(Lifetime::Short, 2), (Lifetime::Medium, 3), (Lifetime::Long, 4)] {
        file.hint_lifetime(lifetime).expect("a kernel of 4.13 or later");
        let mut hint = 0_u64;
        // SAFETY: the descriptor is open, and the kernel writes one u64 at the address.
        let got = unsafe { libc::fcntl(other.as_raw_fd(), F_GET_RW_HINT, &raw mut hint) };
        assert_eq!((got, hint), (0, expected));
    }
}

#[test]
fn reads_what_was_written_durably_or_not() {
    both(async |file| {
        assert_eq!(read(&file, 4096, 8192).await, [0; 8192]);
        for (index, durable) in [(0u64, false), (1, true)] {
            let data: Vec<u8> = (0..1 << 20).map(|byte: u32| (byte / 7 + index as u32) as u8).collect();
            file.write_at(index << 20, Buf::copy_from(&data).freeze(), durable).await.expect("written");
            assert!(read(&file, index << 20, 1 << 20).await == data);
        }
        file.sync_data().await.expect("synced");
        file.write_at(0, Buf::default().freeze(), true).await.expect("nothing to write");
    });
}

#[test]
fn reading_past_the_end_is_unexpected_eof() {
    both(async |file| {
        let (result, buf) = file.read_at(SIZE - 4096, Buf::with_len(8192)).await;
        let error = result.expect_err("half of it is missing");
        assert_eq!((error.kind(), buf.len()), (ErrorKind::UnexpectedEof, 8192));
        assert!(error.to_string().contains("4096 of the 8192"), "{error}");
        let (result, _) = file.read_at(SIZE, Buf::with_len(4096)).await;
        assert_eq!(result.expect_err("all of it is missing").kind(), ErrorKind::UnexpectedEof);
    });
}

#[test]
fn holes_and_zeroes_read_as_zeroes_and_leave_the_neighbours() {
    both(async |file| {
        for punch in [true, false] {
            file.write_at(0, filled(7), false).await.expect("written");
            let (offset, len) = (64 << 10, 128 << 10);
            match punch {
                true => file.punch_hole(offset, len).await.expect("punched"),
                false => file.write_zeroes(offset, len).await.expect("zeroed"),
            }
            let bytes = read(&file, 0, 1 << 20).await;
            let (start, end) = (offset as usize, (offset + len) as usize);
            assert!(bytes[start..end].iter().all(|&byte| byte == 0));
            assert!(bytes[..start].iter().chain(&bytes[end..]).all(|&byte| byte == 7));
        }
        file.punch_hole(0, 0).await.expect("nothing to punch");
        assert_eq!(file.size(), SIZE);
    });
}

#[test]
fn a_second_opener_is_told_that_it_is_busy() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("medium");
    let first = create(&path, true);
    let error = File::open(&path, &OpenOptions::default()).err().expect("held");
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    assert!(error.to_string().contains("in use") && error.to_string().contains("medium"), "{error}");
    let shared = OpenOptions { exclusive: false, read_only: true, ..OpenOptions::default() };
    File::open(&path, &shared).expect("who does not ask for exclusion may look");
    let clone = first.clone();
    drop(first);
    assert!(File::open(&path, &OpenOptions::default()).is_err(), "a clone still holds it");
    drop(clone);
    File::open(&path, &OpenOptions::default()).expect("free again");
}

#[test]
fn opening_tells_what_is_wrong() {
    let directory = tempfile::tempdir().expect("a directory");
    let missing = File::open(&directory.path().join("missing"), &OpenOptions::default()).err().expect("missing");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().contains("missing"), "{missing}");
    let read_only = OpenOptions { read_only: true, direct: false, ..OpenOptions::default() };
    let error = File::open(directory.path(), &read_only).err().expect("a directory");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let path = directory.path().join("medium");
    drop(create(&path, true));
    let file = File::open(&path, &OpenOptions { read_only: true, ..OpenOptions::default() }).expect("opened");
    assert!(run(file.write_at(0, Buf::zeroed(4096).freeze(), false)).is_err(), "opened for reading");
}

#[test]
fn a_write_whose_future_is_dropped_lands_whole_or_not_at_all() {
    both(async |file| {
        for _ in 0..50 {
            file.write_at(0, Buf::zeroed(1 << 20).freeze(), false).await.expect("written");
            let _ = timeout(Duration::ZERO, file.write_at(0, filled(3), true)).await;
            let _recycled = filled(4);
            let _ = timeout(Duration::ZERO, file.read_at(0, Buf::with_len(1 << 20))).await;
            time::sleep(Duration::from_millis(1)).await;
            let bytes = read(&file, 0, 1 << 20).await;
            assert!(bytes.iter().all(|&byte| byte == 0 || byte == 3), "bytes that nobody wrote");
        }
    });
}

#[test]
fn a_dropped_write_lets_go_of_what_it_holds_only_when_the_kernel_is_done() {
    /// Notes the time of its drop.
    struct Guard(Rc<Cell<bool>>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    both(async |file| {
        for round in 0..20u8 {
            let released = Rc::new(Cell::new(false));
            let data = filled(round);
            let mut write =
                Box::pin(file.write_at_holding(0, data, true, Guard(released.clone()), |guard, _| drop(guard)));
            std::future::poll_fn(|cx| {
                assert!(write.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(write);
            assert!(!released.get(), "released although the kernel has not even been asked");
            while !released.get() {
                time::sleep(Duration::from_micros(100)).await;
            }
            assert!(read(&file, 0, 1 << 20).await == *filled(round), "released before the write was done");
            let (result, guard) = file
                .write_at_holding(0, Buf::zeroed(4096).freeze(), false, Guard(released.clone()), |guard, _| drop(guard))
                .await;
            result.expect("written");
            drop(guard);
        }
    });
}

#[test]
fn one_file_serves_many_tasks_and_threads() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = create(&directory.path().join("medium"), true);
    let threads: Vec<_> = (0..2u8)
        .map(|thread| {
            let file = file.clone();
            std::thread::spawn(move || {
                run(async move {
                    let tasks: Vec<_> = (0..32u8)
                        .map(|index| {
                            let (file, byte) = (file.clone(), thread * 32 + index);
                            task::spawn(async move {
                                let offset = u64::from(byte) * 65_536;
                                file.write_at(offset, Buf::copy_from(&[byte; 65_536]).freeze(), true)
                                    .await
                                    .expect("written");
                                assert_eq!(read(&file, offset, 65_536).await, [byte; 65_536]);
                            })
                        })
                        .collect();
                    for task in tasks {
                        task.await;
                    }
                })
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("the thread's assertions hold");
    }
}
