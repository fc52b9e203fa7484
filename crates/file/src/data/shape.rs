//! [`Shape`] and [`Cut`]: into how many columns data is cut, and how long each of them is.
//!
//! ```text
//!  data of a stripe   0 … width … 2 × width … length         width = rows × 4 KiB, the same for all columns
//!  data column 0      |-------|
//!  data column 1              |-------|
//!  data column 2                       |----|                 the last one that holds data is filled up to a whole row
//!  data column 3                                              what no data reaches is zeroes, and lies nowhere
//!  parity columns     |-------|                               over all of the width
//! ```
//! Zeroes behind the end are neither written nor read: everybody knows them. So a write of one row goes to one data column and to
//! those of parity.

use erasure::UNITS_MAX;

use crate::error::Error;

/// Bytes of a row of a column: what space is given out by.
pub const ROW_BYTES: usize = 4096;
/// Rows of a column. Chosen: a command of 512 KiB costs little more than its transfer on any medium.
pub const COLUMN_ROWS_MAX: usize = 128;
/// Columns of parity. Chosen: what failure domains of one file system can lose at once, and that all subsets of them can be tried.
pub const PARITY_COLUMNS_MAX: usize = 4;
/// Checksums of a stripe. Chosen: a MiB is read by 16 KiB, and has 256 bytes of them.
pub const SUMS_MAX: usize = 64;

const _: () = assert!(UNITS_MAX <= u32::BITS as usize, "a set of columns is a u32");
const _: () = assert!(UNITS_MAX <= SUMS_MAX, "each column has a checksum at least");

/// Columns of a stripe: of data and of parity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    data: u8,
    parity: u8,
}

impl Shape {
    /// So many columns of data and of parity.
    ///
    /// # Errors
    /// There is none of data, none or too much of parity, or more than there are of both.
    pub fn new(data: usize, parity: usize) -> Result<Shape, Error> {
        let is_one = data >= 1 && (1..=PARITY_COLUMNS_MAX).contains(&parity) && data + parity <= UNITS_MAX;
        let why = "a stripe has 1 to 4 columns of parity, and 32 columns at most";
        if is_one { Ok(Shape { data: data as u8, parity: parity as u8 }) } else { Err(Error::Invalid(why)) }
    }

    /// Columns of data.
    pub fn data(self) -> usize {
        self.data.into()
    }

    /// Columns of parity.
    pub fn parity(self) -> usize {
        self.parity.into()
    }

    /// All of them.
    pub fn columns(self) -> usize {
        self.data() + self.parity()
    }

    /// Bytes of data in a stripe of so many rows.
    pub fn bytes_of(self, rows: usize) -> usize {
        self.data() * rows * ROW_BYTES
    }

    /// The longest stripe.
    pub fn stripe_bytes_max(self) -> usize {
        self.bytes_of(COLUMN_ROWS_MAX)
    }

    /// How data of this length, which is not 0 and no longer than a stripe may be, lies in its columns.
    pub fn cut(self, length: usize) -> Cut {
        let rows = length.div_ceil(self.bytes_of(1));
        let mut cut = Cut { shape: self, length, width: rows * ROW_BYTES, granule: ROW_BYTES };
        while cut.sums() > SUMS_MAX {
            cut.granule *= 2;
        }
        cut
    }
}

/// See [`Shape::cut`].
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    shape: Shape,
    length: usize,
    width: usize,
    granule: usize,
}

impl Cut {
    /// Of how many columns.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Bytes of data.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Rows of each column.
    pub fn rows(&self) -> usize {
        self.width / ROW_BYTES
    }

    /// Bytes of each column.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Bytes that a checksum covers, and that are read at least; the last one of a column may be shorter.
    pub fn granule(&self) -> usize {
        self.granule
    }

    /// Bytes of the column that lie on its member; behind them are zeroes.
    pub fn filled(&self, column: usize) -> usize {
        if column >= self.shape.data() {
            return self.width;
        }
        self.length.saturating_sub(column * self.width).min(self.width).next_multiple_of(ROW_BYTES)
    }

    /// Granules of a column that are not known to be zeroes.
    pub fn granules(&self, column: usize) -> usize {
        self.filled(column).div_ceil(self.granule)
    }

    /// Checksums of all data columns.
    pub fn sums(&self) -> usize {
        let whole = self.length / self.width;
        let last = if whole < self.shape.data() { self.granules(whole) } else { 0 };
        whole * self.width.div_ceil(self.granule) + last
    }

    /// Which of the checksums belongs to a granule of a data column: those before that hold data are whole.
    pub fn sum_index(&self, column: usize, granule: usize) -> usize {
        column * self.width.div_ceil(self.granule) + granule
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_what_a_byte_loop_says() {
        for (data, parity) in [(1, 1), (2, 1), (4, 2), (5, 4), (28, 4)] {
            let shape = Shape::new(data, parity).unwrap();
            let most = shape.stripe_bytes_max();
            let lengths = [1, 4095, 4096, 4097, 8192, 100_000, 1 << 20, most - 1, most];
            for length in lengths.into_iter().filter(|length| *length <= most) {
                let cut = shape.cut(length);
                let mut filled = vec![0; data];
                for at in (0..length).step_by(ROW_BYTES).chain([length - 1]) {
                    let column = at / cut.width();
                    filled[column] = (at % cut.width() / ROW_BYTES + 1) * ROW_BYTES;
                }
                let found: Vec<usize> = (0..data).map(|column| cut.filled(column)).collect();
                assert_eq!(found, filled, "{data}+{parity} of {length}");
                assert!(cut.rows() <= COLUMN_ROWS_MAX && cut.width() * data >= length);
                assert_eq!(cut.filled(0), cut.width(), "parity is as long as the longest column");
                let sums: usize = (0..data).map(|column| cut.granules(column)).sum();
                assert_eq!((cut.sums(), sums <= SUMS_MAX), (sums, true));
                let last = (0..data).rfind(|column| cut.granules(*column) > 0).unwrap();
                assert_eq!(cut.sum_index(last, cut.granules(last) - 1), sums - 1);
            }
        }
        assert_eq!(Shape::new(4, 2).unwrap().cut(1 << 20).granule(), 16 << 10);
        for (data, parity) in [(0, 1), (1, 0), (1, 5), (29, 4)] {
            assert!(Shape::new(data, parity).is_err());
        }
    }
}
