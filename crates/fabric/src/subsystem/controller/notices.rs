//! What a controller has to tell its host: asynchronous events and the log pages that belong to them (NVMe Base 2.0 §5.2).

use nvme::feature::async_event_config;
use nvme::log::AsyncEvent;
use nvme::reservation::{NotificationType, ReservationNotification};

use super::{Controller, Event};
use crate::subsystem::drain::DrainRequest;
use crate::subsystem::limits::NSID_MAX;

impl Controller {
    pub fn namespace_changed(&self, nsid: u32) {
        let mut state = self.lock();
        state.changed.insert(nsid);
        state.namespace_event.raise();
        drop(state);
        self.admin.raise();
    }

    /// A critical warning of the health log: the medium of a namespace takes no writes any more.
    pub fn medium_failed(&self) {
        self.lock().reliability_event.raise();
        self.admin.raise();
    }

    pub fn ana_changed(&self) {
        self.lock().ana_event.raise();
        self.admin.raise();
    }

    pub fn discovery_changed(&self) {
        self.lock().discovery_event.raise();
        self.admin.raise();
    }

    /// A reservation notification for this controller's host (NVMe Base 2.0 §5.16.1.24). No feature switches the event off;
    /// what is masked by feature 82h does not get here.
    pub fn reservation_notice(&self, nsid: u32, kind: NotificationType) {
        let mut state = self.lock();
        state.notifications.push(nsid, kind);
        state.reservation_event.raise();
        drop(state);
        self.admin.raise();
    }

    /// The oldest notification. Read with `clear` it is forgotten, and if more wait there is an event for them.
    pub fn reservation_log(&self, clear: bool) -> ReservationNotification {
        let mut state = self.lock();
        let page = state.notifications.read(clear);
        if clear {
            state.reservation_event = Event { pending: !state.notifications.is_empty(), masked: false };
        }
        page
    }

    /// Asks the controller's I/O queues to drain a namespace.
    pub fn drain(&self, request: &DrainRequest) {
        for queue in self.lock().queues.values() {
            queue.ask_to_drain(request.clone());
        }
    }

    /// The next event to tell, if the host wants one that happened. It counts as told.
    pub fn next_event(&self) -> Option<AsyncEvent> {
        let mut state = self.lock();
        let wanted = state.features.async_event;
        if state.health_event.tell(wanted & async_event_config::HEALTH_TEMPERATURE != 0) {
            return Some(AsyncEvent::TEMPERATURE);
        }
        let reliability = async_event_config::HEALTH_RELIABILITY | async_event_config::HEALTH_READ_ONLY;
        if state.reliability_event.tell(wanted & reliability != 0) {
            return Some(AsyncEvent::RELIABILITY);
        }
        if state.namespace_event.tell(wanted & async_event_config::NAMESPACE_ATTRIBUTE != 0) {
            return Some(AsyncEvent::NAMESPACE_CHANGED);
        }
        if state.ana_event.tell(wanted & async_event_config::ANA_CHANGE != 0) {
            return Some(AsyncEvent::ANA_CHANGED);
        }
        if state.reservation_event.tell(true) {
            return Some(AsyncEvent::RESERVATION_NOTIFICATION);
        }
        let discovery = state.discovery_event.tell(wanted & async_event_config::DISCOVERY_CHANGE != 0);
        discovery.then_some(AsyncEvent::DISCOVERY_CHANGED)
    }

    /// The namespaces changed since this was last read with `clear` (NVMe Base 2.0 §5.16.1.5).
    pub fn changed_namespaces(&self, clear: bool) -> Vec<u32> {
        const { assert!(NSID_MAX <= 1024, "the Changed Namespace List holds every identifier there is") };
        let mut state = self.lock();
        if !clear {
            return state.changed.iter().copied().collect();
        }
        state.namespace_event.masked = false;
        std::mem::take(&mut state.changed).into_iter().collect()
    }

    pub fn health_read(&self, clear: bool) {
        if clear {
            let mut state = self.lock();
            state.health_event.masked = false;
            state.reliability_event.masked = false;
        }
    }

    pub fn ana_read(&self, clear: bool) {
        if clear {
            self.lock().ana_event.masked = false;
        }
    }

    pub fn discovery_read(&self, clear: bool) {
        if clear {
            self.lock().discovery_event.masked = false;
        }
    }
}
