//! Draws a row: latency and rate of each side, side by side, as one SVG.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use plotters::prelude::*;

use crate::figures::{Row, Side};

const WIDTH: u32 = 1100;
const HEADER: u32 = 70;
const LINE: u32 = 30;
const NAME_WIDTH: i32 = 430;
const BAR_WIDTH: i32 = 230;

/// Draws `row` into the file at `path`.
pub fn draw(row: &Row, path: &Path) -> anyhow::Result<()> {
    let lines = u32::try_from(row.sides.len() + row.ratios.len()).context("too many sides to draw")?;
    let root = SVGBackend::new(path, (WIDTH, HEADER + LINE * (lines + 1))).into_drawing_area();
    draw_on(row, &root).map_err(|e| anyhow!("cannot draw {}: {e}", path.display()))
}

fn draw_on<B: DrawingBackend>(
    row: &Row,
    root: &DrawingArea<B, plotters::coord::Shift>,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let title = ("sans-serif", 20).into_font();
    let text = ("sans-serif", 14).into_font();
    root.fill(&WHITE)?;
    root.draw(&Text::new(format!("{} · {}", row.row, row.title), (12, 10), title))?;
    let (latency_x, rate_x) = (NAME_WIDTH, NAME_WIDTH + BAR_WIDTH + 100);
    root.draw(&Text::new("p50, mark at p99 (µs)", (latency_x, 44), text.clone()))?;
    root.draw(&Text::new("operations a second", (rate_x, 44), text.clone()))?;
    let slowest = greatest(&row.sides, |s| s.p99_us);
    let fastest = greatest(&row.sides, |s| s.rate);
    let scale = |value: f64, most: f64| (value / most * f64::from(BAR_WIDTH)) as i32;
    let mut y = HEADER as i32;
    for (index, side) in row.sides.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let (p50, p99, rate) = (side.median(|s| s.p50_us), side.median(|s| s.p99_us), side.median(|s| s.rate));
        root.draw(&Text::new(side.name.clone(), (12, y), text.clone()))?;
        let bar = |x: i32, length: i32| Rectangle::new([(x, y), (x + length.max(1), y + 16)], color.filled());
        root.draw(&bar(latency_x, scale(p50, slowest)))?;
        let mark = latency_x + scale(p99, slowest);
        root.draw(&PathElement::new(vec![(mark, y), (mark, y + 16)], BLACK))?;
        root.draw(&Text::new(format!("{p50:.1} / {p99:.1}"), (latency_x + BAR_WIDTH + 6, y), text.clone()))?;
        root.draw(&bar(rate_x, scale(rate, fastest)))?;
        root.draw(&Text::new(format!("{rate:.0}"), (rate_x + BAR_WIDTH + 6, y), text.clone()))?;
        y += LINE as i32;
    }
    for ratio in &row.ratios {
        let color = if ratio.met() == Some(false) { RED } else { BLACK };
        let line = format!("{} = {:.2}  [{:.2} … {:.2}]", ratio.name, ratio.median, ratio.low, ratio.high);
        root.draw(&Text::new(line, (12, y), text.color(&color)))?;
        y += LINE as i32;
    }
    root.present()
}

fn greatest(sides: &[Side], figure: impl Fn(&crate::figures::Sample) -> f64 + Copy) -> f64 {
    sides.iter().map(|side| side.median(figure)).fold(f64::MIN_POSITIVE, f64::max)
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
        };
        let directory = tempfile::tempdir().unwrap();
        row.save(directory.path()).unwrap();
        let svg = std::fs::read_to_string(directory.path().join("B0.svg")).unwrap();
        assert!(svg.contains("bare sockets") && svg.contains("ours / floor"), "{svg}");
        let json: Row = serde_json::from_slice(&std::fs::read(directory.path().join("B0.json")).unwrap()).unwrap();
        assert_eq!(json.sides[0].rounds[0].operations, 1);
    }
}
