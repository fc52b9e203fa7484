//! How clients end. One test, since it counts the threads of its process.

use std::time::{Duration, Instant};

use client::testing::MemoryPool;
use client::{Change, Client, Error, Options, Versioned};

/// Reactor threads of clients in this process.
fn reactors() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").expect("this is Linux");
    let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
    let reactor = |name: &String| name.trim().strip_prefix("yagura-").is_some_and(|rest| rest.parse::<u32>().is_ok());
    threads.filter_map(Result::ok).map(name).filter(reactor).count()
}

/// Longer than an operation and the settling after it may take together.
const END_TIME_MAX: Duration = Duration::from_secs(60);

fn wait_until_gone() {
    let start = Instant::now();
    while reactors() > 0 {
        assert!(start.elapsed() < END_TIME_MAX, "{} reactor threads are left", reactors());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn connect(pool: &MemoryPool) -> Client {
    // A short queue, so that requests wait in all places there are.
    Client::connect(pool.addresses(), Options { reactors: 2, queue: 2, ..Options::default() })
        .wait()
        .expect("it answers")
}

#[test]
fn a_client_that_is_dropped_or_closed_with_requests_under_way_ends_and_answers_each() {
    let pool = MemoryPool::start(3).expect("a pool in memory");
    let put_all =
        |client: &Client| -> Vec<_> { (0..300).map(|number| client.put(format!("{number}"), [7; 500])).collect() };

    let client = connect(&pool);
    assert_eq!(reactors(), 2);
    let puts = put_all(&client);
    drop(client);
    for put in puts {
        assert_eq!(put.wait(), Ok(()), "dropped: what was made is done");
    }
    wait_until_gone();

    let client = connect(&pool);
    drop(put_all(&client));
    drop(client);
    wait_until_gone();

    // An update whose closure has the client, and panics; its result is an error where nobody's stack is there to go on.
    let client = connect(&pool);
    let (told, tellings) = std::sync::mpsc::channel();
    let own = client.clone();
    let broken = client.update("1", move |_: Option<&Versioned>| -> Change<()> { panic!("on purpose: {own:?}") });
    broken.on_done(move |result| told.send(result).expect("waited for"));
    assert!(matches!(tellings.recv(), Ok(Err(Error::Usage(_)))));
    assert_eq!(client.get("1").wait().expect("it goes on").map(|value| value.len()), Some(500));
    let puts = put_all(&client);
    let closing = client.close();
    let ends: Vec<_> = puts.into_iter().map(client::Pending::wait).collect();
    closing.wait().expect("close");
    client.close().wait().expect("close again");
    let closed = Err(Error::Closed { outcome_unknown: false });
    assert!(ends.iter().all(|end| *end == Ok(()) || *end == closed), "{ends:?}");
    client.close_and_join().expect("close a third time");
    assert_eq!(reactors(), 0);

    // Nobody answers any more: what was made ends all the same. (Its threads do so too, after the store's own limits.)
    let options = Options { timeout: Some(Duration::from_millis(300)), ..Options::default() };
    let client = Client::connect(pool.addresses(), options).wait().expect("it answers");
    drop(pool);
    let puts: Vec<_> = (0..10).map(|number| client.put(format!("{number}"), "lost")).collect();
    drop(client);
    for put in puts {
        assert!(put.wait().is_err());
    }
}
