//! Peers that hold memory without using it: what they cost, and who pays.

use std::net::TcpStream;

use super::{Text, serve};
use crate::support::Server;

/// Items of 3 KB, more than fit in 64 MiB, and a connection.
fn full() -> (Server, Text<TcpStream>) {
    let server = serve(&["-m", "64", "-t", "2", "-c", "2000"]);
    let mut client = Text::connect(server.address("listening"));
    let value = "v".repeat(3000);
    (0..25_000).for_each(|number| client.send(format!("set {number} 0 0 3000 noreply\r\n{value}\r\n").as_bytes()));
    client.expect(b"mn\r\n", b"MN\r\n");
    assert!(client.figure("evictions") > 0);
    (server, client)
}

/// 900 heads that announced values of 60 KB, 26 KB in all, emptied a cache of 64 MiB.
#[test]
fn values_that_are_announced_take_no_memory() {
    let (server, mut client) = full();
    let before = client.figure("curr_items");
    let mut others: Vec<_> = (0..600).map(|_| Text::connect(server.address("listening"))).collect();
    others.iter_mut().for_each(|other| other.send(b"set half 0 0 60000\r\n"));
    others.iter_mut().step_by(2).for_each(|other| other.send(b"v"));
    // All have been heard.
    others.iter_mut().for_each(|other| other.send(&[b'v'; 10]));
    super::operation::eventually("all wait for the rest of a value", || {
        let conns = client.ask(b"stats conns\r\n", "END");
        conns.iter().filter(|line| line.ends_with(":state conn_nread")).count() == 600
    });
    let after = client.figure("curr_items");
    // Each holds a receive buffer of 16 KiB and what goes with it, 12 MiB of the 64 in all, give or take what was under way at one
    // moment; what they have announced is 36 MiB.
    assert!(after * 10 > before * 7, "{after} of {before} items are left");
}

/// 5,000 idle connections pushed out all items of 64 MiB, and then a set of one byte was refused.
#[test]
fn connections_that_rest_cost_little_and_stop_at_their_share() {
    let (server, mut client) = full();
    let before = client.figure("curr_items");
    let mut others: Vec<_> = (0..1500).map(|_| Text::connect(server.address("listening"))).collect();
    // Half of them have said something.
    others.iter_mut().step_by(2).for_each(|other| other.expect(b"mn\r\n", b"MN\r\n"));
    super::operation::eventually("all are there", || client.figure("curr_connections") == 1501);
    let after = client.figure("curr_items");
    assert!(after * 5 > before * 4, "{after} of {before} items are left");
    client.expect(b"set a 0 0 1\r\nx\r\nget a\r\n", b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
}

/// One byte of a command from each of 5,000 took 40 MiB of buffers, and with them all items of 64 MiB.
#[test]
fn one_byte_of_a_command_costs_as_little() {
    let (server, mut client) = full();
    let before = client.figure("curr_items");
    let mut others: Vec<_> = (0..1900).map(|_| Text::connect(server.address("listening"))).collect();
    others.iter_mut().for_each(|other| other.send(b"g"));
    super::operation::eventually("all are in the middle of a command", || {
        let conns = client.ask(b"stats conns\r\n", "END");
        conns.iter().filter(|line| line.ends_with(":state conn_waiting")).count() == 1900
    });
    // A buffer each would be 15 MiB. Those that receive at one moment hold one, and a few may keep theirs.
    super::operation::eventually("few hold a buffer", || client.figure("memory_buffers") < 6 << 20);
    let after = client.figure("curr_items");
    assert!(after * 10 > before * 7, "{after} of {before} items are left");
    client.expect(b"set a 0 0 1\r\nx\r\nget a\r\n", b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    others.iter_mut().step_by(100).for_each(|other| other.expect(b"et a\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\n"));
}
