//! Draws a row: latency and rate of each side, side by side, as one SVG.
//!
//! Latency is drawn on a logarithmic axis as a line from p50 (dot) to p99 (tick): tails are orders of magnitude longer, and on a
//! linear axis they would hide the medians. Floors are grey, peers orange, ours blue. A row of curves has them beneath.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::figures::{Curve, Row, Side};

const WIDTH: u32 = 1100;
const HEADER: u32 = 70;
const LINE: u32 = 26;
const LATENCY_X: i32 = 330;
const RATE_X: i32 = 790;
const BAR_WIDTH: i32 = 230;
const CHART_HEIGHT: u32 = 420;
const CHART_X: i32 = 60;
const CHART_WIDTH: i32 = 760;
const CHART_STEPS: u32 = 8;

type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// Draws `row` into the file at `path`.
pub fn draw(row: &Row, path: &Path) -> anyhow::Result<()> {
    let lines = u32::try_from(row.sides.len() + row.ratios.len()).context("too many sides to draw")?;
    let height = HEADER + LINE * (lines + 2);
    let chart = if row.curves.is_empty() { 0 } else { CHART_HEIGHT };
    let root = SVGBackend::new(path, (WIDTH, height + chart)).into_drawing_area();
    draw_on(row, &root).map_err(|e| anyhow!("cannot draw {}: {e}", path.display()))
}

fn draw_on<B: DrawingBackend>(row: &Row, root: &DrawingArea<B, Shift>) -> Drawn<B> {
    let text = ("sans-serif", 13).into_font();
    root.fill(&WHITE)?;
    root.draw(&Text::new(format!("{} · {}", row.row, row.title), (12, 10), ("sans-serif", 19).into_font()))?;
    root.draw(&Text::new("latency, p50 to p99 (µs, logarithmic)", (LATENCY_X, 44), text.clone()))?;
    root.draw(&Text::new("operations a second", (RATE_X, 44), text.clone()))?;
    let axis = Axis::new(&row.sides);
    let bottom = (HEADER + LINE * row.sides.len() as u32) as i32;
    axis.draw(root, bottom)?;
    let fastest = row.sides.iter().map(|s| s.median(|s| s.rate)).fold(f64::MIN_POSITIVE, f64::max);
    for (y, side) in (HEADER as i32..).step_by(LINE as usize).zip(&row.sides) {
        let color = color(&side.name);
        root.draw(&Text::new(side.name.clone(), (12, y), text.clone()))?;
        let (p50, p99) = (side.median(|s| s.p50_us), side.median(|s| s.p99_us));
        let (from, to) = (axis.place(p50), axis.place(p99));
        root.draw(&PathElement::new(vec![(from, y + 8), (to, y + 8)], color.stroke_width(2)))?;
        root.draw(&PathElement::new(vec![(to, y + 3), (to, y + 13)], color.stroke_width(2)))?;
        root.draw(&Circle::new((from, y + 8), 5, color.filled()))?;
        root.draw(&Text::new(format!("{p50:.1} / {p99:.1}"), (LATENCY_X + BAR_WIDTH + 60, y), text.clone()))?;
        let rate = side.median(|s| s.rate);
        let length = (rate / fastest * f64::from(BAR_WIDTH)) as i32;
        root.draw(&Rectangle::new([(RATE_X, y), (RATE_X + length.max(1), y + 15)], color.filled()))?;
        root.draw(&Text::new(format!("{rate:.0}"), (RATE_X + length + 6, y), text.clone()))?;
    }
    for (y, ratio) in (bottom + LINE as i32..).step_by(LINE as usize).zip(&row.ratios) {
        let color = if ratio.met() == Some(false) { RED } else { BLACK };
        let line = format!("{} = {:.2}  [{:.2} … {:.2}]", ratio.name, ratio.median, ratio.low, ratio.high);
        root.draw(&Text::new(line, (12, y), text.color(&color)))?;
    }
    if !row.curves.is_empty() {
        let top = root.dim_in_pixel().1.saturating_sub(CHART_HEIGHT);
        draw_curves(&row.curves, &root.split_vertically(top).1)?;
    }
    root.present()
}

/// Every curve in a colour of its own, with its name beside its end.
fn draw_curves<B: DrawingBackend>(curves: &[Curve], area: &DrawingArea<B, Shift>) -> Drawn<B> {
    let text = ("sans-serif", 11).into_font();
    let (width, height) = (CHART_WIDTH as f64, f64::from(CHART_HEIGHT - 2 * LINE));
    let points = || curves.iter().flat_map(|curve| &curve.points).copied();
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (least, most) =
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
        // A range of nothing would divide by zero.
        if least < most { (least, most) } else { (least - 0.5, least + 0.5) }
    };
    let (x_range, y_range) = (range(&mut points().map(|point| point.0)), range(&mut points().map(|point| point.1)));
    let share = |value: f64, (least, most): (f64, f64)| (value - least) / (most - least);
    let place = |(x, y): (f64, f64)| {
        let (right, up) = (share(x, x_range) * width, share(y, y_range) * height);
        (CHART_X + right as i32, LINE as i32 + (height - up) as i32)
    };
    let grid = RGBColor(215, 215, 215);
    for step in 0..=CHART_STEPS {
        let at = |(least, most): (f64, f64)| least + (most - least) * f64::from(step) / f64::from(CHART_STEPS);
        let (x, y) = (at(x_range), at(y_range));
        area.draw(&PathElement::new(vec![place((x, y_range.0)), place((x, y_range.1))], grid))?;
        area.draw(&PathElement::new(vec![place((x_range.0, y)), place((x_range.1, y))], grid))?;
        let (below, left) = (place((x, y_range.0)), place((x_range.0, y)));
        area.draw(&Text::new(format!("{x:.0}"), (below.0 - 6, below.1 + 6), text.clone()))?;
        area.draw(&Text::new(format!("{y:.2}"), (left.0 - 40, left.1 - 6), text.clone()))?;
    }
    for (index, curve) in curves.iter().enumerate() {
        let color = HSLColor(index as f64 / curves.len() as f64, 0.7, 0.4);
        let line = curve.points.iter().map(|&point| place(point)).collect::<Vec<_>>();
        area.draw(&PathElement::new(line, color.stroke_width(2)))?;
        let name = (CHART_X + CHART_WIDTH + 30, LINE as i32 + 16 * index as i32);
        area.draw(&Text::new(curve.name.clone(), name, text.color(&color)))?;
    }
    Ok(())
}

/// Who a side is, by its name.
fn color(name: &str) -> RGBColor {
    match name {
        _ if name.contains("bare sockets") || name.contains("the disk itself") => RGBColor(130, 130, 130),
        _ if ["memcached", "fio", "Ceph"].iter().any(|peer| name.contains(peer)) => RGBColor(222, 135, 20),
        _ => RGBColor(30, 100, 180),
    }
}

/// The logarithmic axis of latencies: whole decades that hold everything drawn.
struct Axis {
    first: i32,
    decades: i32,
}

impl Axis {
    fn new(sides: &[Side]) -> Axis {
        let low = sides.iter().map(|s| s.median(|s| s.p50_us)).fold(f64::INFINITY, f64::min);
        let high = sides.iter().map(|s| s.median(|s| s.p99_us)).fold(0.0, f64::max);
        // Below the clock's grain there is nothing to tell apart; a row without samples gets the decade at 1 µs.
        let decade = |us: f64| if us.is_finite() { us.max(0.01).log10() } else { 0.0 };
        let first = decade(low).floor() as i32;
        Axis { first, decades: (decade(high).ceil() as i32 - first).max(1) }
    }

    fn place(&self, us: f64) -> i32 {
        let decades = us.max(0.01).log10() - f64::from(self.first);
        LATENCY_X + (decades / f64::from(self.decades) * f64::from(BAR_WIDTH)) as i32
    }

    fn draw<B: DrawingBackend>(&self, root: &DrawingArea<B, Shift>, bottom: i32) -> Drawn<B> {
        let grid = RGBColor(215, 215, 215);
        for decade in self.first..=self.first + self.decades {
            let us = 10f64.powi(decade);
            let x = self.place(us);
            root.draw(&PathElement::new(vec![(x, HEADER as i32 - 6), (x, bottom)], grid))?;
            root.draw(&Text::new(us.to_string(), (x - 6, bottom + 2), ("sans-serif", 11).into_font()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::figures::{Ratio, Sample, histogram, record};

    #[test]
    fn a_row_becomes_an_svg_with_its_names() {
        let mut h = histogram();
        record(&mut h, Duration::from_micros(9));
        let sample = Sample::new(&h, Duration::from_millis(1), Duration::ZERO, None);
        let side = Side { name: "bare sockets".to_owned(), rounds: vec![sample] };
        let ratio = Ratio::new("ours / floor", &side, &side, |s| s.p50_us);
        let row = Row {
            row: "B0".to_owned(),
            title: "test".to_owned(),
            conditions: vec![],
            sides: vec![side],
            ratios: vec![ratio],
            curves: Vec::new(),
        };
        let directory = tempfile::tempdir().unwrap();
        row.save(directory.path()).unwrap();
        let svg = std::fs::read_to_string(directory.path().join("B0.svg")).unwrap();
        assert!(svg.contains("bare sockets") && svg.contains("ours / floor"), "{svg}");
        let json: Row = serde_json::from_slice(&std::fs::read(directory.path().join("B0.json")).unwrap()).unwrap();
        assert_eq!(json.sides[0].rounds[0].operations, 1);
    }
}
