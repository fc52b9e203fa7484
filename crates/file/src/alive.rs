//! What a client does by itself: it says that it lives, notices when it could not, has what nobody flushes go out, gives back what
//! it does not want, and looks after the dead.
//!
//! **Each is a task of its own**, as each may have to wait for the pool: that the time of locks is over is noticed when it is,
//! whatever else waits.

use std::rc::{Rc, Weak};
use std::time::Duration;

use engine::{task, time};

use crate::check::clients::Collector;
use crate::data::Auditor;
use crate::files::Files;
use crate::opened::OpenFile;
use crate::ops::LEASE_RENEWED_EVERY;
use crate::renewal::{follow, say_it_lives};

/// How often a client says that it lives.
const RENEWED_EVERY: Duration = Duration::from_secs(60);
/// How long bytes lie in memory that nobody flushes, at most twice. Chosen: what a crash of the host may lose of a file that is
/// never flushed; local file systems take 5 to 30 seconds.
const LYING_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether something is to be done.
const LOOKED_EVERY: Duration = Duration::from_secs(5);

/// How often the times of large directories are told. Chosen: how late others may see any attribute.
const NOTED_EVERY: Duration = Duration::from_secs(1);
/// How often a client tells what it has used of quotas. Chosen: what a death leaves too much of is what was freed since.
const SETTLED_EVERY: Duration = Duration::from_secs(10);

impl Files {
    /// Says that this client lives, and has what nobody flushes go out, until it is dropped.
    pub fn keep_itself_alive(self: &Rc<Self>) -> task::Task<()> {
        let files = Rc::downgrade(self);
        task::spawn(async move {
            let _noticing = task::spawn(notice(Weak::clone(&files)));
            let _renewing = task::spawn(renew(Weak::clone(&files)));
            let _paying = task::spawn(pay(Weak::clone(&files)));
            let _settling = task::spawn(settle(Weak::clone(&files)));
            let _tending = task::spawn(tend(Weak::clone(&files)));
            let _noting = task::spawn(note(Weak::clone(&files)));
            loop {
                time::sleep(LYING_MAX).await;
                let Some(files) = files.upgrade() else { return };
                files.dirty_files().iter().for_each(OpenFile::go_on);
            }
        })
    }

    /// The same, and collects clients that are no more.
    pub fn keep_alive(self: &Rc<Self>) -> task::Task<()> {
        let collector = Collector::new(
            Rc::clone(self.names()),
            Auditor::new(Rc::clone(self.names().meta()), Rc::clone(self.members())),
        );
        let alive = self.keep_itself_alive();
        task::spawn(async move {
            let _collecting = task::spawn(collector.run());
            alive.await;
        })
    }

    /// How often this client says that it lives.
    fn renewed_every(&self) -> Duration {
        let names = self.names();
        if names.locks.is_holding() || !names.standing.is_told() { LEASE_RENEWED_EVERY } else { RENEWED_EVERY }
    }
}

/// Notices when the time of locks is over: then, and not when somebody asks.
async fn notice(files: Weak<Files>) {
    loop {
        let Some(files) = files.upgrade() else { return };
        files.names().notice_loss();
        // A lock that is taken meanwhile is one of a lease that ends no earlier.
        let left = files.names().lease_left().unwrap_or(LOOKED_EVERY);
        drop(files);
        time::sleep(left).await;
    }
}

async fn renew(files: Weak<Files>) {
    let mut last = time::now();
    loop {
        time::sleep(LOOKED_EVERY).await;
        let Some(files) = files.upgrade() else { return };
        let names = files.names();
        let begun = time::now();
        if begun.duration_since(last) >= files.renewed_every() || !names.is_standing() {
            last = begun;
            say_it_lives(names).await;
        }
        // Also where somebody else has renewed it, or has got another number for it.
        follow(names, files.contents().space());
    }
}

/// Gives back what could not be given back before.
async fn pay(files: Weak<Files>) {
    loop {
        time::sleep(LEASE_RENEWED_EVERY).await;
        let Some(files) = files.upgrade() else { return };
        files.names().pay_debts().await;
        files.names().let_go_of_closed().await;
    }
}

/// Tells what was used of quotas, and gives back what is not.
async fn settle(files: Weak<Files>) {
    loop {
        time::sleep(SETTLED_EVERY).await;
        let Some(files) = files.upgrade() else { return };
        files.names().settle_quotas().await;
    }
}

/// Tells others when entries of large directories were changed here.
async fn note(files: Weak<Files>) {
    loop {
        time::sleep(NOTED_EVERY).await;
        let Some(files) = files.upgrade() else { return };
        files.names().note_all_times().await;
    }
}

/// Looks after rows and chunks, and at what has become of members.
async fn tend(files: Weak<Files>) {
    let mut last = time::now();
    loop {
        time::sleep(LOOKED_EVERY).await;
        let Some(files) = files.upgrade() else { return };
        if last.elapsed() < RENEWED_EVERY {
            continue;
        }
        last = time::now();
        if let Err(error) = files.refresh_members().await {
            tracing::warn!(%error, "what has become of members is not known");
            files.contents().space().tend().await;
        }
    }
}
