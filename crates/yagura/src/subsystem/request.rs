//! What is asked of a target at its control socket, and why it is not done.
//!
//! Who asks and who is asked may be of different versions. A target refuses what it does not know: it would do something else than
//! it was asked. So what came later is sent only where somebody has said it (`default` and `skip_serializing_if`), and a request
//! without fields has braces, without which serde overlooks those that it does not know. Who reads answers overlooks what it does
//! not know: there is nothing to be done about it.

use std::path::PathBuf;

use nvme::AnaState;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exit::Failure;
use crate::namespaces::NamespaceSpec;
use crate::spec::text;

/// What can be asked. Without a subsystem the only one is meant.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// What there is, and what goes on.
    Status {},
    /// Set a group's state at a port.
    AnaState {
        subsystem: Option<String>,
        port: u16,
        group: u32,
        #[serde(with = "text")]
        state: AnaState,
    },
    /// Put a namespace into a group.
    AnaGroup { subsystem: Option<String>, nsid: u32, group: u32 },
    /// Add a namespace.
    AddNamespace { spec: NamespaceSpec },
    /// Take one away.
    RemoveNamespace { subsystem: Option<String>, nsid: u32 },
    /// Let one grow to this many bytes.
    ResizeNamespace { subsystem: Option<String>, nsid: u32, bytes: u64 },
    /// Work on a drive; without a path the only one is meant.
    Drive { drive: Option<PathBuf>, action: DriveAction },
    /// Let a host in, or any.
    AllowHost {
        subsystem: Option<String>,
        host: String,
        /// Whether it may manage namespaces from now on; none: as before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        manage: Option<bool>,
    },
    /// Let it in no more.
    DenyHost { subsystem: Option<String>, host: String },
    /// Give it the keys in these files to authenticate with.
    SetHostKey { subsystem: Option<String>, host: String, key_file: PathBuf, controller_key_file: Option<PathBuf> },
}

impl Request {
    /// Whether it asks for more than a report. A scrub that begins is logged where that is known; its watcher may only join it.
    pub fn changes(&self) -> bool {
        let looks = |action: &DriveAction| {
            matches!(action, DriveAction::List {} | DriveAction::Usage {} | DriveAction::Scrub { .. })
        };
        !matches!(self, Request::Status {}) && !matches!(self, Request::Drive { action, .. } if looks(action))
    }
}

/// Why it is not done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// A sentence.
    pub error: String,
    /// The exit status that says it, see [`crate::exit`].
    pub exit: u8,
}

/// What can be asked of a drive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum DriveAction {
    List {},
    Usage {},
    Create {
        name: String,
        bytes: u64,
        block: u32,
        subsystem: Option<String>,
    },
    Delete {
        name: String,
        /// Also while hosts have it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    Grow {
        name: String,
        bytes: u64,
    },
    Snapshot {
        name: String,
        new: String,
    },
    Clone {
        name: String,
        new: String,
    },
    /// Begin a scrub where none is under way, or say how the last one stands.
    Scrub {
        begin: bool,
        /// Those that it may read; 0: as fast as it goes. None in requests that begin none, and of programs from before there were
        /// rates: the usual.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes_per_second: Option<u64>,
    },
    /// End the scrub that is under way.
    StopScrub {},
}

/// What is asked.
pub fn understood(body: &str) -> Result<Request, Failure> {
    let value: Value = serde_json::from_str(body).map_err(|error| not_understood(&error.to_string()))?;
    serde_json::from_value(value).map_err(|error| not_understood(&error.to_string()))
}

/// What begins the sentence about a request that is none. Older targets say no more than this and why.
pub const NO_REQUEST: &str = "no request: ";

/// Why a request is none, in serde's words, and what mends it.
pub fn not_understood(why: &str) -> Failure {
    let mend = if why.starts_with("unknown ") {
        "where a newer program asks: update the target, or use a program of its version"
    } else if why.starts_with("missing field ") {
        "where an older program asks: use one of the target's version"
    } else {
        return Failure::usage(format!("{NO_REQUEST}{why}"));
    };
    Failure::refused(format!("the target does not understand the request: {why} ({mend})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_what_they_look_like() {
        let request = Request::RemoveNamespace { subsystem: None, nsid: 3 };
        let text = serde_json::to_string(&request).expect("written");
        assert_eq!(text, r#"{"verb":"remove-namespace","subsystem":null,"nsid":3}"#);
        assert_eq!(serde_json::from_str::<Request>(&text).expect("read"), request);
        assert!(serde_json::from_str::<Request>(r#"{"verb":"remove-namespace","nsid":3,"x":1}"#).is_err());
    }

    /// One of each, with all that can be said.
    fn requests() -> Vec<Request> {
        let name = || "a".to_owned();
        let (subsystem, host, key_file) = (Some(name()), name(), name());
        let of_drive = [
            DriveAction::List {},
            DriveAction::Usage {},
            DriveAction::Create { name: name(), bytes: 1, block: 512, subsystem: Some(name()) },
            DriveAction::Delete { name: name(), force: true },
            DriveAction::Grow { name: name(), bytes: 1 },
            DriveAction::Snapshot { name: name(), new: name() },
            DriveAction::Clone { name: name(), new: name() },
            DriveAction::Scrub { begin: true, bytes_per_second: Some(1) },
            DriveAction::StopScrub {},
        ];
        let mut all: Vec<Request> =
            of_drive.into_iter().map(|action| Request::Drive { drive: Some("/a".into()), action }).collect();
        all.extend([
            Request::Status {},
            Request::AnaState { subsystem: subsystem.clone(), port: 1, group: 1, state: AnaState::Optimized },
            Request::AnaGroup { subsystem: subsystem.clone(), nsid: 1, group: 1 },
            Request::AddNamespace { spec: "file=a,size=1G".parse().expect("a namespace") },
            Request::RemoveNamespace { subsystem: subsystem.clone(), nsid: 1 },
            Request::ResizeNamespace { subsystem: subsystem.clone(), nsid: 1, bytes: 1 },
            Request::AllowHost { subsystem: subsystem.clone(), host: host.clone(), manage: Some(true) },
            Request::DenyHost { subsystem: subsystem.clone(), host: host.clone() },
            Request::SetHostKey { subsystem, host, key_file: key_file.into(), controller_key_file: None },
        ]);
        all
    }

    /// Every object in `value` with a field that this version does not know, one at a time.
    fn with_a_later_field(value: &Value) -> Vec<Value> {
        let Value::Object(fields) = value else { return Vec::new() };
        let mut all = Vec::new();
        // What a namespace is in is said by the one key there is: it has no place for fields of its own.
        if !fields.contains_key("file") {
            all.push(fields.clone());
            all[0].insert("later".into(), true.into());
        }
        for (key, inner) in fields {
            all.extend(with_a_later_field(inner).into_iter().map(|inner| {
                let mut outer = fields.clone();
                outer.insert(key.clone(), inner);
                outer
            }));
        }
        all.into_iter().map(Value::Object).collect()
    }

    /// An older target said "unknown field" and nothing more; and of the requests without fields it did what it knew, as if no more
    /// had been asked.
    #[test]
    fn what_a_target_does_not_know_is_refused_with_what_mends_it() {
        let mut refused = 0;
        for request in requests() {
            let value = serde_json::to_value(&request).expect("written");
            assert_eq!(understood(&value.to_string()).expect("it is ours"), request);
            for later in with_a_later_field(&value) {
                let failure = understood(&later.to_string()).expect_err("refused");
                let why = failure.sentence();
                assert!(failure.status() == 4 && why.contains("unknown field `later`"), "{later}: {why}");
                assert!(why.contains("update the target, or use a program of its version"), "{why}");
                refused += 1;
            }
        }
        assert_eq!(refused, 18 + 9 + 2, "each, the action on a drive, and a namespace and its file");
        let refusal = |body: &str| understood(body).expect_err("refused");
        let verb = refusal(r#"{"verb":"later"}"#);
        assert!(verb.status() == 4 && verb.sentence().contains("update the target"), "{}", verb.sentence());
        let older = refusal(r#"{"verb":"remove-namespace"}"#);
        assert!(older.status() == 4 && older.sentence().contains("of the target's version"), "{}", older.sentence());
        for body in ["", "7", r#"{"verb":"remove-namespace","nsid":"three"}"#] {
            let wrong = refusal(body);
            assert!(wrong.status() == 2 && wrong.sentence().starts_with("no request: "), "{}", wrong.sentence());
        }
    }

    /// What nobody has said was sent all the same, and a target from before it could be said refused all of it.
    #[test]
    fn what_is_not_said_is_not_sent() {
        let sent = |request: &Request| serde_json::to_string(request).expect("written");
        let of_drive = |action| sent(&Request::Drive { drive: None, action });
        let scrub = |begin, rate: Option<u64>| of_drive(DriveAction::Scrub { begin, bytes_per_second: rate });
        assert_eq!(scrub(false, None), r#"{"verb":"drive","drive":null,"action":{"do":"scrub","begin":false}}"#);
        assert!(scrub(true, Some(0)).contains(r#""begin":true,"bytes_per_second":0"#));
        let delete = |force| of_drive(DriveAction::Delete { name: "a".into(), force });
        assert_eq!(delete(false), r#"{"verb":"drive","drive":null,"action":{"do":"delete","name":"a"}}"#);
        assert!(delete(true).contains(r#""force":true"#));
        let allow = |manage| sent(&Request::AllowHost { subsystem: None, host: "a".into(), manage });
        assert_eq!(allow(None), r#"{"verb":"allow-host","subsystem":null,"host":"a"}"#);
        assert!(allow(Some(false)).contains(r#""manage":false"#));
    }
}
