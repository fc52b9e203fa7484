//! The library as a program uses it: threads, futures on a foreign executor, limits, ends.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use client::testing::MemoryPool;
use client::{
    CasOutcome, Change, Client, Error, ErrorKind, Increment, Options, PutOptions, SecurityOptions, VALUE_BYTES_MAX,
    Versioned,
};

fn start(options: Options) -> (MemoryPool, Client) {
    let pool = MemoryPool::start(3).expect("a pool in memory");
    let client = Client::connect(pool.addresses(), options).wait().expect("it answers");
    (pool, client)
}

/// An executor that is none of ours: it polls on this thread and sleeps in between.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn many_threads_share_one_client_over_several_reactors() {
    let (_pool, client) = start(Options { reactors: 2, ..Options::default() });
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let client = client.clone();
            thread::spawn(move || {
                for round in 0..20 {
                    let key = format!("{number}/{round}");
                    client.put(&key, format!("value of {key}")).wait().expect("put");
                    let found = client.get(&key).wait().expect("get");
                    assert_eq!(found, Some(format!("value of {key}").into_bytes()));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let mut keys: Vec<_> = client.scan("").map(|entry| entry.expect("scan").key).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 160);
    client.close().wait().expect("close");
}

#[test]
fn futures_run_on_any_executor_and_more_than_the_queue_holds() {
    let (_pool, client) = start(Options { queue: 2, ..Options::default() });
    block_on(async {
        // More than queue and mailbox hold: the rest waits with its caller.
        let puts: Vec<_> = (0..500).map(|number| client.put(format!("key-{number}"), [number as u8; 100])).collect();
        for put in puts {
            put.await.expect("put");
        }
        let gets: Vec<_> = (0..500).map(|number| client.get(format!("key-{number}"))).collect();
        for (number, get) in gets.into_iter().enumerate() {
            assert_eq!(get.await.expect("get"), Some(vec![number as u8; 100]));
        }
        let mut scan = client.scan("key-1");
        let mut count = 0;
        while let Some(entry) = scan.next_entry().await.expect("scan") {
            assert!(entry.key.starts_with(b"key-1") && entry.value_len == 100);
            count += 1;
        }
        assert_eq!(count, 111);
        assert!(client.delete("key-7").await.expect("delete"));
        assert_eq!(client.get("key-7").await.expect("get"), None);
    });
}

#[test]
fn what_is_over_the_limits_is_the_callers_mistake() {
    let (_pool, client) = start(Options::default());
    let wrong = [
        client.put("", "value").wait(),
        client.put(vec![7; client::KEY_BYTES_MAX + 1], "value").wait(),
        client.put("key", vec![0; VALUE_BYTES_MAX + 1]).wait(),
    ];
    for result in wrong {
        let error = result.expect_err("over the limits");
        assert!(error.kind() == ErrorKind::Usage && !error.outcome_unknown(), "{error}");
    }
    let largest: Vec<u8> = (0..1 << 20).map(|place| (place % 251) as u8).collect();
    client.put("large", &largest).wait().expect("put");
    assert!(client.get("large").wait().expect("get") == Some(largest));
    for options in [
        Options { reactors: 0, ..Options::default() },
        Options { queue: 0, ..Options::default() },
        Options { timeout: Some(Duration::ZERO), ..Options::default() },
        Options {
            security: SecurityOptions { concatenation: true, ..SecurityOptions::default() },
            ..Options::default()
        },
    ] {
        let error = Client::connect(["127.0.0.1:1"], options).wait().expect_err("wrong options");
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    }
    let error = Client::connect(["nowhere"], Options::default()).wait().expect_err("no address");
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    let nobody = Client::connect(["127.0.0.1:1"], Options::default()).wait().expect_err("nobody there");
    assert_eq!(nobody.kind(), ErrorKind::Unavailable, "{nobody}");
}

#[test]
fn a_change_without_a_majority_is_unknown_and_a_read_is_not() {
    let (pool, client) = start(Options { timeout: Some(Duration::from_millis(300)), ..Options::default() });
    client.put("key", "value").wait().expect("put");
    drop(pool);
    let put = client.put("key", "other").wait().expect_err("nobody answers");
    assert!(put.outcome_unknown() && put.kind() == ErrorKind::TimedOut, "{put}");
    let get = client.get("key").wait().expect_err("nobody answers");
    assert!(!get.outcome_unknown(), "{get}");
}

#[test]
fn a_closed_client_answers_so_and_its_clones_too() {
    let (_pool, client) = start(Options::default());
    let clone = client.clone();
    client.put("key", "value").wait().expect("put");
    client.close().wait().expect("close");
    for result in [client.put("key", "other").wait(), clone.put("key", "other").wait()] {
        assert_eq!(result, Err(Error::Closed { outcome_unknown: false }));
    }
    client.close_and_join().expect("closing twice does no harm");
    let (_pool, other) = start(Options::default());
    let (first, second) = (other.close(), other.clone().close());
    assert_eq!((second.wait(), first.wait()), (Ok(()), Ok(())), "both ask at once");
}

#[test]
fn versions_expiry_and_tags_are_kept() {
    let (_pool, client) = start(Options::default());
    let expiry = Some(client::expiry_in(Duration::from_secs(3600)));
    client.put_with("key", "value", PutOptions { expiry, tag: 9 }).wait().expect("put");
    let first = client.get_versioned("key").wait().expect("get").expect("there");
    assert_eq!((first.expiry, first.tag), (expiry, 9));
    client.put("key", "value").wait().expect("put");
    let second = client.get_versioned("key").wait().expect("get").expect("there");
    assert_eq!((second.expiry, second.tag), (None, 0));
    assert_ne!(first.version, second.version);
    assert_eq!(second.version.to_string().parse().ok(), Some(second.version));
}

#[test]
fn members_are_told_apart() {
    let (_pool, client) = start(Options::default());
    client.put("key", "value").wait().expect("put");
    let members = client.members().wait().expect("members");
    assert_eq!(members.len(), 3);
    assert!(members.iter().filter(|member| member.votes).count() >= 2, "{members:?}");
}

#[test]
fn conditional_operations_count_exactly_from_many_threads() {
    let (_pool, client) = start(Options { reactors: 2, ..Options::default() });
    let other = Client::connect(_pool.addresses(), Options::default()).wait().expect("it answers");
    let threads: Vec<_> = [client.clone(), client.clone(), other]
        .into_iter()
        .map(|client| {
            thread::spawn(move || {
                for _ in 0..10 {
                    client.increment("turns", 1, Some(0)).wait().expect("increment");
                    client.append("text", "x").wait().expect("append");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(client.increment("turns", 0, None).wait(), Ok(Increment::Value(30)));
    assert_eq!(client.get("text").wait().expect("get").map(|text| text.len()), Some(30));
    assert_eq!(client.increment("text", 1, None).wait(), Ok(Increment::NotANumber));
    let taken = client.take("text").wait().expect("take").expect("there");
    let stale = client.compare_and_set("text", taken.version, "again", PutOptions::default()).wait();
    assert_eq!(stale, Ok(CasOutcome::Changed(None)));
    assert_eq!(client.replace("text", "again", PutOptions::default()).wait(), Ok(false));
    assert_eq!(client.add("text", "again", PutOptions::default()).wait(), Ok(true));
}

#[test]
fn the_panic_of_an_update_goes_on_where_it_is_waited_for_and_harms_nobody() {
    let (_pool, client) = start(Options::default());
    client.put("key", "value").wait().expect("put");
    let broken = client.clone();
    let waiter = thread::spawn(move || {
        broken.update("key", |_: Option<&Versioned>| -> Change<()> { panic!("on purpose") }).wait()
    });
    assert!(waiter.join().is_err(), "the panic is the caller's");
    let again = client.update("key", |found| Change::Keep(found.map(|found| found.value.clone())));
    assert_eq!(again.wait(), Ok(Some(b"value".to_vec())), "and the client goes on");
}
