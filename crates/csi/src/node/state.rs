//! What a node has to know after a crash: a file for each volume, in one folder.
//!
//! A file is replaced as a whole, and stable before what it announces is begun.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::capability::Access;

/// The version that is written.
const VERSION: u32 = 1;
/// What the name of a file ends with, and of one that is being written.
const SUFFIX: &str = "json";
/// See [`SUFFIX`].
const SUFFIX_NEW: &str = "new";

/// How far the staging of a volume has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// It is being attached.
    Attaching,
    /// A filesystem is being made on it: what it holds is to be made anew.
    Formatting,
    /// It has a filesystem, which is being mounted.
    Formatted,
    /// It may be published.
    Staged,
}

/// A path at which a volume is shown.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Published {
    /// Where.
    pub target: PathBuf,
    /// Nothing is written there.
    pub is_read_only: bool,
}

/// A volume of this node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct State {
    /// Of this file.
    pub version: u32,
    /// Its name.
    pub volume: String,
    /// Where it is mounted for the node.
    pub staging: PathBuf,
    /// The port of this machine at which its process serves it.
    pub port: u16,
    /// How it is used.
    pub access: Access,
    /// In which tenure this host attached it for the last time: that of which `step` tells.
    #[serde(default)]
    pub tenure: Option<String>,
    /// How far it is.
    pub step: Step,
    /// Where it is shown to those that use it.
    pub published: Vec<Published>,
}

impl State {
    /// Of a volume that is to be attached.
    pub fn new(volume: &str, staging: &Path, port: u16, access: &Access) -> State {
        let (volume, staging, access) = (volume.to_owned(), staging.to_owned(), access.clone());
        let (step, published) = (Step::Attaching, Vec::new());
        State { version: VERSION, volume, staging, port, access, tenure: None, step, published }
    }
}

/// The folder.
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// Makes the folder where there is none.
    pub fn open(folder: &Path) -> io::Result<Store> {
        fs::create_dir_all(folder)?;
        Ok(Store { folder: folder.to_owned() })
    }

    /// What is known of a volume, whose name is one.
    pub fn load(&self, volume: &str) -> io::Result<Option<State>> {
        let path = self.path(volume, SUFFIX);
        match fs::read(&path) {
            Ok(bytes) => read(&path, &bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes it down.
    pub fn save(&self, state: &State) -> io::Result<()> {
        let (new, path) = (self.path(&state.volume, SUFFIX_NEW), self.path(&state.volume, SUFFIX));
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec_pretty(state)?)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(&self.folder)?.sync_all()
    }

    /// Forgets a volume.
    pub fn remove(&self, volume: &str) -> io::Result<()> {
        match fs::remove_file(self.path(volume, SUFFIX)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => File::open(&self.folder)?.sync_all(),
        }
    }

    /// All volumes, by name. A file that can't be read says so, and keeps nobody from the others.
    pub fn all(&self) -> io::Result<Vec<State>> {
        let mut found = Vec::new();
        for path in self.files()? {
            match fs::read(&path).and_then(|bytes| read(&path, &bytes)) {
                Ok(state) => found.push(state),
                Err(error) => {
                    tracing::error!(%error, "nothing is done with this volume until somebody sees to its file")
                }
            }
        }
        found.sort_by(|a, b| a.volume.cmp(&b.volume));
        Ok(found)
    }

    /// The ports of all volumes: also of a file that is understood no further.
    pub fn ports(&self) -> io::Result<BTreeSet<u16>> {
        #[derive(Deserialize)]
        struct Port {
            port: u16,
        }
        let port = |path: PathBuf| serde_json::from_slice::<Port>(&fs::read(path).ok()?).ok();
        Ok(self.files()?.into_iter().filter_map(port).map(|Port { port }| port).collect())
    }

    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let paths: io::Result<Vec<PathBuf>> =
            fs::read_dir(&self.folder)?.map(|entry| entry.map(|entry| entry.path())).collect();
        Ok(paths?.into_iter().filter(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX)).collect())
    }

    fn path(&self, volume: &str, suffix: &str) -> PathBuf {
        self.folder.join(format!("{volume}.{suffix}"))
    }
}

fn read(path: &Path, bytes: &[u8]) -> io::Result<State> {
    let strange = |why: String| io::Error::other(format!("{}: {why}", path.display()));
    let state: State = serde_json::from_slice(bytes).map_err(|error| strange(error.to_string()))?;
    match state.version {
        VERSION => Ok(state),
        other => Err(strange(format!("it has version {other}, this program knows {VERSION}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::Filesystem;

    #[test]
    fn what_is_written_down_is_found_and_what_was_being_written_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(&folder.path().join("state")).expect("opened");
        assert_eq!(store.load("a").expect("read"), None);
        let access = Access::Mount { filesystem: Filesystem::Xfs, flags: vec!["noatime".into()] };
        let mut state = State::new("a", Path::new("/staging"), 1, &access);
        store.save(&state).expect("written");
        state.step = Step::Formatting;
        state.published.push(Published { target: "/target".into(), is_read_only: true });
        store.save(&state).expect("written");
        fs::write(folder.path().join("state/b.new"), "{").expect("written");
        assert_eq!(store.load("a").expect("read"), Some(state.clone()));
        assert_eq!(store.all().expect("read"), [state]);
        store.remove("a").expect("removed");
        store.remove("a").expect("removed before");
        assert_eq!(store.all().expect("read"), []);
        for (damaged, ports) in [("{", &[1][..]), ("{\"version\": 2, \"port\": 7}", &[1, 7])] {
            fs::write(folder.path().join("state/c.json"), damaged).expect("written");
            assert!(store.load("c").is_err(), "{damaged}");
            store.save(&State::new("d", Path::new("/staging"), 1, &access)).expect("written");
            assert_eq!(store.all().expect("read").len(), 1, "{damaged}: the others are there");
            assert!(store.ports().expect("read").into_iter().eq(ports.iter().copied()), "{damaged}");
        }
    }
}
