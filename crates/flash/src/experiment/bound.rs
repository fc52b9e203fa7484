//! What greedy collection costs at best under uniform random writes.
//!
//! The stationary state of Bux and Iliadis, "Performance of greedy garbage collection in flash-based solid-state drives"
//! (Performance Evaluation, 2010), for many lines; it is also what Van Houdt's mean field of d-choices ("A mean field model for
//! a class of garbage collection algorithms in flash-based solid state drives", SIGMETRICS 2013) tends to with d. Of N lines of
//! `b` sectors, a share `u` of which is valid, every write makes a valid one of them invalid, each with the same chance: a line
//! with `i` valid sectors gets one with `i - 1` in proportion to `i`. Lines enter with `b`, and none with more than the least is
//! taken: so the share of lines with `i` is `c / i` down to the level `j` at which they are taken, some of which lose one more
//! sector before it is their turn:
//!
//! ```text
//! sum of c / i over j < i <= b, + p = 1              all lines
//! c (b - j) + j p = u b                              all valid sectors
//! ```
//!
//! with `j` such that `0 <= j p <= c`. As many sectors are programmed for each that hosts write as `c / u`.

/// Sectors programmed for each that hosts write, where the room for data is larger than the namespace by this share (0.07: 7 %),
/// and the lines that are emptied as a whole hold this many sectors.
pub fn greedy_bound(spare: f64, sectors_of_line: u64) -> f64 {
    let (valid, size) = (1.0 / (1.0 + spare.max(0.0)), sectors_of_line.max(1) as f64);
    // Of the shares with more valid sectors than at the level at which lines are taken.
    let mut above = 0.0;
    for level in (0..sectors_of_line.max(1)).rev() {
        above += 1.0 / (level + 1) as f64;
        let level = level as f64;
        let c = (valid * size - level) / (size - level - level * above);
        let share = 1.0 - c * above;
        // The first level at which those that wait for their turn lose no more sectors than come.
        if c > 0.0 && share >= 0.0 && level * share <= c {
            return c / valid;
        }
    }
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64, tolerance: f64) {
        assert!((found / expected - 1.0).abs() < tolerance, "{found}, should be {expected}");
    }

    /// A = a / (a + W(-a e^-a)) where `a` is the room over the namespace: x = -W is the smaller solution of x e^-x = a e^-a.
    fn by_lambert(spare: f64) -> f64 {
        let room = 1.0 + spare;
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..200 {
            let x = f64::midpoint(low, high);
            *(if x * (-x).exp() < room * (-room).exp() { &mut low } else { &mut high }) = x;
        }
        room / (room - low)
    }

    /// Luojie and Kurkoski, "An improved analytic expression for write amplification in NAND flash" (2012): 2.36 by their
    /// expression at an overprovisioning of 0.3, where simulation gives 2.35.
    #[test]
    fn long_lines_cost_what_the_published_expression_says() {
        near(greedy_bound(0.3, 4096), 2.36, 0.003);
        for spare in [0.07, 0.1, 0.15, 0.2, 0.28, 0.5, 1.0] {
            near(greedy_bound(spare, 1 << 16), by_lambert(spare), 0.002);
        }
    }

    /// Desnoyers, "Analytic modeling of SSD write performance" (SYSTOR 2012): greedy collection of blocks of Np pages costs what an
    /// endless block does at k times the room, over k, with k = 1 + 1 / (2 Np).
    #[test]
    fn shorter_lines_cost_less_as_published() {
        for sectors in [16, 32, 64, 128] {
            for spare in [0.07, 0.14, 0.28] {
                let k = 1.0 + 0.5 / sectors as f64;
                let published = by_lambert(k * (1.0 + spare) - 1.0) / k;
                near(greedy_bound(spare, sectors), published, 0.015);
            }
        }
        assert!(greedy_bound(0.1, 16) < greedy_bound(0.1, 64) && greedy_bound(0.2, 64) < greedy_bound(0.1, 64));
    }

    #[test]
    fn a_line_of_one_sector_costs_nothing_and_no_spare_is_bounded() {
        near(greedy_bound(0.1, 1), 1.0, 1e-9);
        assert!(greedy_bound(0.0, 64) >= 1.0 && greedy_bound(10.0, 64) >= 1.0);
    }
}
