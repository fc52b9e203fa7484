//! What can be wrong with what a code is given.

use std::fmt;

use crate::kernel::Kernel;
use crate::matrix::{PARITY_MAX, UNITS_MAX};

/// What was wrong; nothing has been written then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// No code has so many units.
    Shape {
        /// Units of data asked for.
        data: usize,
        /// Units of parity asked for.
        parity: usize,
    },
    /// The processor lacks what this kernel is made of.
    Kernel(Kernel),
    /// Too few or too many units were given.
    Count {
        /// How many were given.
        found: usize,
        /// How many the code has.
        expected: usize,
    },
    /// A unit is not as long as the others.
    Length {
        /// Its number: data first, then parity.
        unit: usize,
        /// Its length.
        found: usize,
        /// The length of the first one.
        expected: usize,
    },
    /// More units are lost than there is parity.
    TooManyLost {
        /// Units that were not given.
        lost: usize,
        /// Units that may be lost.
        parity: usize,
    },
    /// The code has no such unit, or not of this kind (data, parity).
    NoSuchUnit(usize),
    /// A unit was asked for that was given, too.
    NotLost(usize),
    /// A unit was asked for twice.
    Repeated(usize),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Shape { data, parity } => write!(
                f,
                "no code has {data} units of data and {parity} of parity: at least 1 of data, 1 to {PARITY_MAX} of parity, \
                 {UNITS_MAX} together at most"
            ),
            Error::Kernel(kernel) => write!(f, "this processor has not what the kernel {kernel:?} is made of"),
            Error::Count { found, expected } => write!(f, "{found} units were given, the code has {expected}"),
            Error::Length { unit, found, expected } => {
                write!(f, "unit {unit} has {found} bytes, the first one has {expected}: all units are of one length")
            }
            Error::TooManyLost { lost, parity } => {
                write!(f, "{lost} units are lost, {parity} may be: give more of the units that are left")
            }
            Error::NoSuchUnit(unit) => write!(f, "unit {unit} is none of this code, or not of the kind asked for"),
            Error::NotLost(unit) => write!(f, "unit {unit} is asked for and given: leave it out of what is given"),
            Error::Repeated(unit) => write!(f, "unit {unit} is asked for twice"),
        }
    }
}

impl std::error::Error for Error {}
