//! The store from threads: `cargo run -p client --example kv -- 127.0.0.1:4421`
//!
//! Every operation returns at once with a `Pending`; `.wait()` blocks for its result.

use std::thread;

use client::{CasOutcome, Change, Client, Error, Increment, Options, PutOptions, Versioned};

/// What there is to show, on the pool that `addresses` lead to.
pub fn run(addresses: &[String]) -> Result<(), Error> {
    let client = Client::connect(addresses, Options::default()).wait()?;
    client.put("lantern", "lit").wait()?;
    println!("lantern: {:?}", client.get("lantern").wait()?.map(|value| String::from_utf8_lossy(&value).into_owned()));

    // Ten requests under way together.
    let puts: Vec<_> = (0..10).map(|number| client.put(format!("lamp-{number}"), "dim")).collect();
    for put in puts {
        put.wait()?;
    }
    println!("lamps: {}", client.scan("lamp-").filter(Result::is_ok).count());

    // On condition that nobody was faster.
    if let Some(seen) = client.get_versioned("lantern").wait()? {
        match client.compare_and_set("lantern", seen.version, "out", PutOptions::default()).wait()? {
            CasOutcome::Stored(_) => println!("the lantern is out"),
            CasOutcome::Changed(_) => println!("somebody else was at the lantern"),
        }
    }

    // Four threads, one client, no count lost.
    client.delete("visits").wait()?;
    let threads: Vec<_> = (0..4).map(|_| client.clone()).map(|client| thread::spawn(move || visit(&client))).collect();
    for thread in threads {
        // A panic there is this program's defect.
        thread.join().unwrap_or(Ok(()))?;
    }
    match client.increment("visits", 0, None).wait()? {
        Increment::Value(visits) => println!("visits: {visits}"),
        other => println!("visits can't be counted: {other:?}"),
    }

    // What is to be made of a value is decided where it is known.
    let longest = |found: Option<&Versioned>| match found {
        Some(found) if found.value.len() >= 5 => Change::Keep(false),
        _ => Change::Put { value: b"dazzling".to_vec(), options: PutOptions::default(), result: true },
    };
    println!("changed: {}", client.update("lantern", longest).wait()?);

    // An error says what it means for the data.
    if let Err(error) = client.put("", "a key has a name").wait() {
        println!("{error}; outcome unknown: {}", error.outcome_unknown());
    }
    client.close().wait()
}

fn visit(client: &Client) -> Result<(), Error> {
    for _ in 0..5 {
        client.increment("visits", 1, Some(0)).wait()?;
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    run(&std::env::args().skip(1).collect::<Vec<_>>())
}
