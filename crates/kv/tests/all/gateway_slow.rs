//! The gateway in front of a store that takes its time.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::net::{TcpListener, TcpStream};
use engine::sync::Notify;
use engine::{task, time};
use kv::resp::fuzz::MemoryBackend;
use kv::resp::{Gateway, GatewayState, Operation, Watch, Watched};

use crate::gateway::{receive, send, simulated};

/// Puts end when they are let.
#[derive(Clone, Default)]
struct Slow {
    puts: Rc<Cell<usize>>,
    goes_on: Rc<Cell<bool>>,
    change: Notify,
}

impl Watch for Slow {
    async fn begins(&self, operation: Operation, _key: &[u8]) {
        if operation == Operation::Put {
            self.puts.set(self.puts.get() + 1);
            while !self.goes_on.get() {
                self.change.notified().await;
            }
        }
    }
}

/// Whoever sent a long command and whose connection was ended had the room for the next while the store still held the first.
#[test]
fn a_command_holds_its_room_beyond_the_end_of_its_connection() {
    simulated(async {
        let store = Slow::default();
        let watched = Watched { inner: MemoryBackend::default(), watch: store.clone() };
        let gateway = Gateway::new(Rc::new(watched), Arc::new(GatewayState::default()), 100);
        let listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let address = listener.local_addr();
        task::spawn(async move { gateway.accept(&listener, &[]).await }).detach();
        let value = vec![b'v'; 64_000_000];
        let mut ended = Vec::new();
        for put in 1..=4 {
            let stream = TcpStream::connect(address).await.expect("connected");
            send(&stream, format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", value.len()).as_bytes()).await;
            send(&stream, &[&value[..], b"\r\nSET waits x\r\n"].concat()).await;
            while store.puts.get() < put {
                time::sleep(Duration::from_millis(10)).await;
            }
            ended.push(stream);
        }
        let killer = TcpStream::connect(address).await.expect("connected");
        send(&killer, b"CLIENT KILL TYPE normal\r\n").await;
        assert_eq!(receive(&killer, 4).await, b":4\r\n");
        for stream in &ended {
            assert!(receive(stream, 1).await.is_empty());
        }
        let late = TcpStream::connect(address).await.expect("connected");
        let next = task::spawn(async move {
            send(&late, format!("*3\r\n$3\r\nSET\r\n$1\r\nl\r\n${}\r\n", value.len()).as_bytes()).await;
            send(&late, &[&value[..], b"\r\n"].concat()).await;
            receive(&late, 5).await
        });
        time::sleep(Duration::from_secs(2)).await;
        assert_eq!(store.puts.get(), 4, "there was room for one more");
        store.goes_on.set(true);
        store.change.notify_all();
        assert_eq!(next.await, b"+OK\r\n");
    });
}
