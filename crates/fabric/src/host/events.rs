//! What a controller tells without being asked, and what stands in where it does not.

use std::rc::Rc;
use std::time::Duration;

use engine::backoff::Backoff;
use engine::time;
use nvme::log::{AsyncEvent, LogId};
use nvme::opcode::AdminOpcode;
use nvme::{PAGE_BYTES, Submission};

use super::association::Association;
use super::error::ConnectError;
use super::queue::Payload;
use super::session::Inner;
use super::slot::Ended;

/// How often a namespace that is missing is looked for where no event tells of it. Guessed.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// The pause before the ANA log page is read after a command's answer. Guessed.
const ANA_PAUSE: Duration = Duration::from_millis(100);
/// Pauses between further looks double up to this. Guessed: a path may be the lesser one for years.
const ANA_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Takes the controller's events, one at a time (NVMe Base 2.0 §5.2). Reading the log page that an event names lets the next
/// one of its kind through.
pub(super) async fn watch_events(inner: Rc<Inner>, association: Rc<Association>) {
    let Some(link) = association.admin_link() else { return };
    loop {
        let request = Submission::admin(AdminOpcode::ASYNC_EVENT_REQUEST, 0, 0);
        let Ok((Ended::Completed(completion), _)) = link.execute_whenever(request, Payload::None).await else {
            return;
        };
        if !completion.status().is_success() {
            // Events are not offered, or too many are asked for: look now and then instead.
            return poll_instead(&inner, &association).await;
        }
        let event = AsyncEvent::from_result(completion.result.get());
        tracing::info!(address = %inner.options.address, ?event, "event from the target");
        if let Err(error) = follow(&inner, &association, event).await {
            tracing::warn!(address = %inner.options.address, %error, "connecting anew");
            association.give_up();
            return;
        }
    }
}

async fn follow(inner: &Inner, association: &Rc<Association>, event: AsyncEvent) -> Result<(), ConnectError> {
    let Some(admin) = association.admin() else { return Ok(()) };
    if event == AsyncEvent::ANA_CHANGED {
        // Told also when a namespace has moved to another group (NVM Command Set 1.0c figure 97, ANAGRPID).
        match inner.look_again(association).await {
            // Whether it is gone, another event tells.
            Err(error @ (ConnectError::NoNamespace { .. } | ConnectError::Refused { .. })) => {
                tracing::debug!(%error, "a namespace could not be identified at a change of its ANA state");
            }
            looked => looked?,
        }
        match association.refresh_ana().await {
            Err(error @ ConnectError::Link { .. }) => return Err(error),
            // A page that keeps changing is no reason to lose what is under way.
            Err(error) => {
                tracing::debug!(%error, "the ANA log page could not be read");
                inner.ana_doubted.notify_one();
            }
            Ok(()) => {}
        }
        inner.notify();
        return Ok(());
    }
    let bytes = if event.log == LogId::CHANGED_NAMESPACES { PAGE_BYTES } else { 512 };
    match admin.log(event.log, 0, bytes).await {
        Err(error @ ConnectError::Link { .. }) => return Err(error),
        Err(error) => tracing::debug!(%error, ?event, "the event's log page could not be read"),
        Ok(_) => {}
    }
    match event {
        AsyncEvent::NAMESPACE_CHANGED => inner.look_again(association).await,
        _ => Ok(()),
    }
}

/// Reads the ANA log page where a command's answer told a state that it did not: at once, and then until every state is one that
/// takes commands, in case the event that tells of it got lost (NVMe Base 2.0 §8.1.1.9: a transition takes up to ANATT).
pub(super) async fn watch_ana(inner: Rc<Inner>, association: Rc<Association>) {
    loop {
        inner.ana_doubted.notified().await;
        let mut backoff = Backoff::new(ANA_PAUSE, ANA_PAUSE_MAX);
        // Those that are told together are looked at together.
        time::sleep(ANA_PAUSE).await;
        loop {
            match association.refresh_ana().await {
                Err(error @ ConnectError::Link { .. }) => {
                    tracing::debug!(address = %inner.options.address, %error, "the ANA log page could not be read");
                    break;
                }
                // No command goes to a path in a bad state, so none would have it looked at again.
                Err(error) => {
                    tracing::debug!(address = %inner.options.address, %error, "looking again for the ANA log page");
                    rest(&inner, &mut backoff).await;
                    continue;
                }
                Ok(()) => inner.notify(),
            }
            if inner.attached().iter().all(|attached| attached.is_usable()) {
                break;
            }
            rest(&inner, &mut backoff).await;
        }
    }
}

/// The pause between two looks, shorter again after a new doubt.
async fn rest(inner: &Inner, backoff: &mut Backoff) {
    if time::timeout(backoff.pause(), inner.ana_doubted.notified()).await.is_ok() {
        time::sleep(ANA_PAUSE).await;
        backoff.reset();
    }
}

/// Stands in for events that the controller does not offer.
async fn poll_instead(inner: &Inner, association: &Rc<Association>) {
    loop {
        time::sleep(LOOK_INTERVAL).await;
        let looked = async {
            association.refresh_ana().await?;
            inner.look_again(association).await
        };
        if let Err(error) = looked.await {
            tracing::warn!(address = %inner.options.address, %error, "connecting anew");
            return association.give_up();
        }
        inner.notify();
    }
}
