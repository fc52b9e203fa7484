//! Exit status, and how a failure is said.
//!
//! | status | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | a check failed, or the key is not there |
//! | 2 | the command line or the config file is wrong |
//! | 3 | unavailable: no connection, or no majority of members answers |
//! | 4 | a file, device, superblock or pool is damaged, foreign, in use or of another version |
//! | 5 | out of space |
//! | 6 | the volume is another host's, or is no more |
//! | 70 | a defect of this program |

use std::process::ExitCode;

use client::ErrorKind;

/// Text of the statuses, for `--help`.
pub const EXIT_STATUS_HELP: &str = "\
Exit status: 0 done; 1 a check failed or the key is not there; 2 wrong command line or config file;
3 unavailable (no connection, no majority); 4 damaged, foreign, in use or of another version; 5 out of space;
6 the volume is another host's, or is no more.";

/// Why the program ends other than by status 0.
#[derive(Debug)]
pub struct Failure {
    status: u8,
    sentence: String,
}

impl Failure {
    /// A check that failed, or a key that is not there.
    pub fn check(sentence: impl std::fmt::Display) -> Failure {
        Failure { status: 1, sentence: sentence.to_string() }
    }

    /// A wrong command line or config file.
    pub fn usage(sentence: impl std::fmt::Display) -> Failure {
        Failure { status: 2, sentence: sentence.to_string() }
    }

    /// Nothing answers.
    pub fn unavailable(sentence: impl std::fmt::Display) -> Failure {
        Failure { status: 3, sentence: sentence.to_string() }
    }

    /// Something is damaged, foreign, in use or of another version.
    pub fn refused(sentence: impl std::fmt::Display) -> Failure {
        Failure { status: 4, sentence: sentence.to_string() }
    }

    /// No room left.
    pub fn out_of_space(sentence: impl std::fmt::Display) -> Failure {
        Failure { status: 5, sentence: sentence.to_string() }
    }

    /// The volume is another host's, or is no more: this one has nothing of it.
    pub fn lost(sentence: impl std::fmt::Display) -> Failure {
        Failure { status: 6, sentence: sentence.to_string() }
    }

    /// One that another process of ours has told.
    pub fn with_status(status: u8, sentence: String) -> Failure {
        Failure { status, sentence }
    }

    /// The exit status.
    pub fn status(&self) -> u8 {
        self.status
    }

    /// Whether it is that of [`Failure::lost`].
    pub fn is_lost(&self) -> bool {
        self.status == 6
    }

    /// The same failure with what was being done in front.
    pub fn during(self, what: impl std::fmt::Display) -> Failure {
        Failure { sentence: format!("{what}: {}", self.sentence), ..self }
    }

    /// The sentence, without the program's name.
    pub fn sentence(&self) -> &str {
        &self.sentence
    }

    /// Says it on standard error and gives the status.
    pub fn report(&self) -> ExitCode {
        eprintln!("yagura: {}", self.sentence);
        ExitCode::from(self.status)
    }
}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Failure {
        match error.kind() {
            ErrorKind::Usage => Failure::usage(error),
            ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::Closed => Failure::unavailable(error),
            ErrorKind::Refused => Failure::refused(error),
            ErrorKind::OutOfSpace => Failure::out_of_space(error),
            // A kind that this table does not know yet: somebody has to look.
            _ => Failure::refused(error),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        use std::io::ErrorKind::{ConnectionRefused, ConnectionReset, ResourceBusy, StorageFull, TimedOut};
        match error.kind() {
            ConnectionRefused | ConnectionReset | TimedOut => Failure::unavailable(error),
            StorageFull => Failure::out_of_space(error),
            ResourceBusy => Failure::refused(error),
            _ => Failure::refused(error),
        }
    }
}

/// Prints clap's own text: help and version are no failures. `instead`: a sentence that says better what to do.
pub fn usage(error: &clap::Error, instead: Option<String>) -> Result<(), Failure> {
    if let Some(instead) = instead {
        return Err(Failure::usage(instead));
    }
    if error.use_stderr() {
        let text = error.render().to_string();
        return Err(Failure::usage(text.trim_start_matches("error: ").trim_end()));
    }
    error.print().map_err(|error| Failure::from(error).during("standard output"))
}
