//! Keeps one connection to a holder, writes the record over it, and makes it anew when it has ended.

use std::rc::Rc;
use std::time::Duration;

use engine::backoff::{Backoff, jittered};
use engine::time;

use crate::conn::{Conn, Expected, Said};
use crate::error::Error;
use crate::shared::Shared;

/// Pauses between tries. Guessed: the first is a round trip or two, the longest is what a target that is back waits for us.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// The pause after a medium has refused a write, or does none. Guessed: it is not soon that it takes one.
const PAUSE_REFUSED: Duration = Duration::from_secs(5);
/// The pause after a namespace that is no holder of the volume, or none any more. Chosen: to look at it takes it from whoever uses
/// it now, or makes a holder of it.
const PAUSE_UNFIT: Duration = Duration::from_secs(60);

/// Ends when the volume is over. `first`: a connection that is there already.
pub(crate) async fn keep(shared: Rc<Shared>, slot: usize, first: Option<Rc<Conn>>) {
    let mut next = first;
    let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
    while !shared.is_over() {
        let conn = match next.take() {
            Some(conn) => conn,
            None => match open(&shared, slot).await {
                Ok(conn) => conn,
                Err(error) => {
                    shared.note(slot, error.to_string());
                    let pause = if error.may_pass() { backoff.pause() } else { PAUSE_UNFIT };
                    pause_for(&shared, slot, jittered(pause)).await;
                    continue;
                }
            },
        };
        if shared.is_over() {
            return;
        }
        shared.connected(&conn);
        serve(&shared, &conn).await;
        // What ends each connection soon is not to be asked all the time.
        if conn.since.get().elapsed() >= PAUSE.1 {
            backoff.reset();
        }
        shared.sweep();
        // Where two hosts take a holder from each other, chance has to part them.
        let pause = if shared.is_refused(slot) { PAUSE_REFUSED } else { backoff.pause() };
        pause_for(&shared, slot, jittered(pause)).await;
    }
}

/// Ends sooner when the volume is over, or the holder is reached in another way.
async fn pause_for(shared: &Shared, slot: usize, pause: Duration) {
    let until = time::now() + pause;
    let reach = shared.reaches.borrow()[slot].clone();
    loop {
        let changed = shared.changed.notified();
        let is_same = Rc::ptr_eq(&reach, &shared.reaches.borrow()[slot]);
        let left = until.duration_since(time::now());
        if shared.is_over() || !is_same || time::timeout(left, changed).await.is_err() {
            return;
        }
    }
}

async fn open(shared: &Rc<Shared>, slot: usize) -> Result<Rc<Conn>, Error> {
    let reach = shared.reaches.borrow()[slot].clone();
    let (volume, regions) = (Some(shared.shape.volume), shared.regions_counted());
    let conn =
        Conn::open(&reach, Expected { slot, volume, regions }, shared.changed.clone(), shared.figures.clone()).await?;
    if conn.label.shape != shared.shape {
        return Err(Error::Impossible("the holder's label has another shape than the volume: format it anew"));
    }
    if shared.regions_counted() > conn.label.regions_max() {
        return Err(Error::log_too_small(&conn.label));
    }
    Ok(conn)
}

/// Writes each record over the connection until that ends.
async fn serve(shared: &Rc<Shared>, conn: &Rc<Conn>) {
    loop {
        let changed = shared.changed.notified();
        if shared.is_over() || !conn.is_up() {
            return;
        }
        let record = shared.mirror.borrow().to_send(conn.slot);
        match record {
            None => changed.await,
            Some(record) => match conn.accept(&record).await {
                Ok(Said::Yes) if conn.is_up() => shared.accepted(conn.slot, &record),
                Ok(Said::Yes) | Err(_) => return,
                Ok(Said::Higher) => return shared.supersede(),
            },
        }
    }
}
