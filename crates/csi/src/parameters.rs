//! Parameters of a class of volumes.

use control::provision::{Level, REPLICAS_MAX};

use crate::wire::Words;

/// What orchestrators add of their own.
const FOREIGN: &str = "csi.storage.k8s.io/";

/// How volumes of the class are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// `replicas`: copies of the data.
    pub replicas: u8,
    /// `apart`: how far apart they stand.
    pub level: Level,
    /// `relax`: whether they may stand nearer together where that can't be had.
    pub relax: bool,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters { replicas: REPLICAS_MAX, level: Level::default(), relax: false }
    }
}

impl Parameters {
    /// What the words say. A word that nobody understands is refused: it may have been meant to keep the data safe.
    pub fn read(words: &Words) -> Result<Parameters, String> {
        let mut found = Parameters::default();
        for (name, value) in words.iter().filter(|(name, _)| !name.starts_with(FOREIGN)) {
            match (name.as_str(), value.as_str()) {
                ("replicas", value) => {
                    let replicas = value.parse().ok().filter(|replicas| (1..=REPLICAS_MAX).contains(replicas));
                    found.replicas = replicas.ok_or_else(|| format!("replicas: {value:?} is none of 1, 2 and 3"))?;
                }
                ("apart", "drive") => found.level = Level::Drive,
                ("apart", "node") => found.level = Level::Node,
                ("apart", "rack") => found.level = Level::Rack,
                ("apart", "zone") => found.level = Level::Zone,
                ("apart", other) => return Err(format!("apart: {other:?} is none of drive, node, rack and zone")),
                ("relax", "true") => found.relax = true,
                ("relax", "false") => found.relax = false,
                ("relax", other) => return Err(format!("relax: {other:?} is neither true nor false")),
                (other, _) => {
                    return Err(format!("parameter {other:?} is unknown: there are replicas, apart and relax"));
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[(&str, &str)]) -> Result<Parameters, String> {
        Parameters::read(&words.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn words_are_understood_or_refused() {
        assert_eq!(read(&[("csi.storage.k8s.io/pvc/name", "a")]), Ok(Parameters::default()));
        let all = read(&[("replicas", "2"), ("apart", "zone"), ("relax", "true")]);
        assert_eq!(all, Ok(Parameters { replicas: 2, level: Level::Zone, relax: true }));
        for wrong in
            [("replicas", "0"), ("replicas", "4"), ("replicas", "x"), ("apart", "row"), ("relax", ""), ("size", "1")]
        {
            assert!(read(&[wrong]).is_err(), "{wrong:?}");
        }
    }
}
