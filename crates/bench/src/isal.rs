//! Intel's library ISA-L, a peer: loaded when it is asked for, so that nothing else needs it.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;

use anyhow::Context as _;

/// The library's name; the number is that of its interface.
const LIBRARY: &CStr = c"libisal.so.2";
/// What has it.
pub const PACKAGE: &str = "libisal2";
/// Bytes of the tables for one factor.
const TABLE_BYTES: usize = 32;

type Encode = unsafe extern "C" fn(c_int, c_int, c_int, *const u8, *const *const u8, *const *mut u8);
type Tables = unsafe extern "C" fn(c_int, c_int, *const u8, *mut u8);
type Cauchy = unsafe extern "C" fn(*mut u8, c_int, c_int);
type Invert = unsafe extern "C" fn(*mut u8, *mut u8, c_int) -> c_int;
type Xor = unsafe extern "C" fn(c_int, c_int, *const *const u8) -> c_int;

/// The functions that are measured, and those that prepare them.
#[derive(Clone, Copy, Debug)]
pub struct Isal {
    encode: Encode,
    tables: Tables,
    cauchy: Cauchy,
    invert: Invert,
    xor: Xor,
}

/// Where the units of one operation lie, as the library takes it.
#[derive(Debug)]
pub struct Places<'a> {
    length: c_int,
    sources: c_int,
    /// Sources, then outputs.
    all: Vec<*const u8>,
    outs: Vec<*mut u8>,
    units: PhantomData<&'a mut [u8]>,
}

impl<'a> Places<'a> {
    /// Units of one length.
    pub fn new(sources: &[&'a [u8]], outs: Vec<&'a mut [u8]>) -> anyhow::Result<Places<'a>> {
        let length = outs.first().context("no output")?.len();
        let lengths = sources.iter().map(|source| source.len()).chain(outs.iter().map(|out| out.len()));
        anyhow::ensure!(lengths.into_iter().all(|found| found == length), "units differ in length");
        let outs: Vec<*mut u8> = outs.into_iter().map(<[u8]>::as_mut_ptr).collect();
        let all = sources.iter().map(|source| source.as_ptr()).chain(outs.iter().map(|out| out.cast_const())).collect();
        Ok(Places { length: c(length)?, sources: c(sources.len())?, all, outs, units: PhantomData })
    }
}

/// Tables of factors, for so many sources and outputs.
#[derive(Debug)]
pub struct Factors {
    sources: c_int,
    outs: c_int,
    tables: Vec<u8>,
}

impl Isal {
    /// Loads the library, once and for the life of the process.
    pub fn load() -> anyhow::Result<Isal> {
        // SAFETY: the name ends with a zero byte; the library does nothing when it is loaded.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        anyhow::ensure!(!library.is_null(), "ISA-L is not there: install Debian's {PACKAGE}");
        let find = |name: &CStr| {
            // SAFETY: the library was loaded above and is never closed; the name ends with a zero byte.
            let function = unsafe { libc::dlsym(library, name.as_ptr()) };
            anyhow::ensure!(!function.is_null(), "{LIBRARY:?} has no {name:?}");
            Ok(function)
        };
        // SAFETY: the functions are those of the library's headers (`erasure_code.h`, `raid.h`), which these types repeat.
        Ok(unsafe {
            Isal {
                encode: std::mem::transmute::<*mut c_void, Encode>(find(c"ec_encode_data")?),
                tables: std::mem::transmute::<*mut c_void, Tables>(find(c"ec_init_tables")?),
                cauchy: std::mem::transmute::<*mut c_void, Cauchy>(find(c"gf_gen_cauchy1_matrix")?),
                invert: std::mem::transmute::<*mut c_void, Invert>(find(c"gf_invert_matrix")?),
                xor: std::mem::transmute::<*mut c_void, Xor>(find(c"xor_gen")?),
            }
        })
    }

    /// The factors of all parity.
    pub fn of_parity(&self, data: usize, parity: usize) -> anyhow::Result<Factors> {
        self.factors(data, parity, &self.matrix(data, parity)?[data * data..])
    }

    /// The factors of the first `lost` units of data, made of the units that follow them.
    pub fn of_lost(&self, data: usize, parity: usize, lost: usize) -> anyhow::Result<Factors> {
        anyhow::ensure!(lost <= parity, "more is lost than there is parity");
        let mut left = self.matrix(data, parity)?[lost * data..][..data * data].to_vec();
        let mut inverse = vec![0; data * data];
        // SAFETY: both have `data` rows and columns.
        let failed = unsafe { (self.invert)(left.as_mut_ptr(), inverse.as_mut_ptr(), c(data)?) };
        anyhow::ensure!(failed == 0, "ISA-L can't invert a matrix of {data}+{parity}");
        self.factors(data, lost, &inverse)
    }

    /// The sums of sources times factors.
    pub fn sum(&self, factors: &Factors, places: &mut Places<'_>) {
        assert!(
            (factors.sources, factors.outs) == (places.sources, places.outs.len() as c_int),
            "factors of other units"
        );
        // SAFETY: the tables and the places are of so many sources and outputs, and all units are so long.
        unsafe {
            (self.encode)(
                places.length,
                factors.sources,
                factors.outs,
                factors.tables.as_ptr(),
                places.all.as_ptr(),
                places.outs.as_ptr(),
            );
        }
    }

    /// The exclusive or of all sources, of which the units begin at multiples of 32 bytes.
    pub fn xor(&self, places: &mut Places<'_>) {
        assert!(places.outs.len() == 1, "an exclusive or has one output");
        // SAFETY: the last place is the output, and all units are so long.
        let failed = unsafe { (self.xor)(places.sources + 1, places.length, places.all.as_ptr()) };
        assert!(failed == 0, "ISA-L takes no such units: they are not aligned");
    }

    /// A row for each unit, a column for each unit of data.
    fn matrix(&self, data: usize, parity: usize) -> anyhow::Result<Vec<u8>> {
        let mut matrix = vec![0; (data + parity) * data];
        // SAFETY: the matrix has so many rows and columns.
        unsafe { (self.cauchy)(matrix.as_mut_ptr(), c(data + parity)?, c(data)?) };
        Ok(matrix)
    }

    fn factors(&self, sources: usize, outs: usize, matrix: &[u8]) -> anyhow::Result<Factors> {
        let mut tables = vec![0; TABLE_BYTES * sources * outs];
        anyhow::ensure!(matrix.len() >= sources * outs, "a matrix without rows for all outputs");
        let (sources, outs) = (c(sources)?, c(outs)?);
        // SAFETY: the matrix has a row for each output, the tables room for each factor.
        unsafe { (self.tables)(sources, outs, matrix.as_ptr(), tables.as_mut_ptr()) };
        Ok(Factors { sources, outs, tables })
    }
}

fn c(number: usize) -> anyhow::Result<c_int> {
    c_int::try_from(number).context("too large for ISA-L")
}
