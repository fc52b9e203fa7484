//! `yagura flash map` and `wear`: parallel units × chunks, each chunk coloured by its state and by how much of it is valid, or how
//! worn it is; as text on a terminal, as JSON, or as an SVG picture.

use std::io::IsTerminal;
use std::path::Path;

use flash::ChunkState;
use flash::presets::Preset;
use serde::Serialize;

use super::served::{Opened, look, nand_failure};
use crate::cli::FlashPictureArgs;
use crate::exit::Failure;
use crate::output;

/// Chunks in a line of text. Chosen: with what is in front it fits a terminal of 80 columns.
const LINE_CHUNKS: usize = 64;
/// The side of a chunk in an SVG picture, in its units. Chosen: a device of 170 chunks fits a screen.
const SIDE: usize = 8;
/// What is left of the first chunk in an SVG picture: the number of the parallel unit.
const MARGIN: usize = 40;

/// What a picture shows of a chunk that is neither free nor bad.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// How much of it is valid.
    Validity,
    /// How often it was reset.
    Wear,
}

#[derive(Serialize)]
struct Drawn {
    state: &'static str,
    written: u32,
    valid: u32,
    wear: u32,
}

#[derive(Serialize)]
struct Picture {
    /// A zoned block device has none.
    preset: Option<&'static str>,
    chunk_sectors: u32,
    wear_most: u32,
    /// Of each parallel unit its chunks.
    units: Vec<Vec<Drawn>>,
}

/// A mark of text and a colour.
type Look = (char, [u8; 3]);

const FREE: [u8; 3] = [226, 226, 226];
const OPEN: [u8; 3] = [66, 133, 244];
const READ_ONLY: [u8; 3] = [245, 166, 35];
const BAD: [u8; 3] = [208, 2, 27];
/// The ends of the scale between nothing and all.
const SCALE: [[u8; 3]; 2] = [[214, 240, 214], [0, 90, 50]];

/// Shows a picture of a device that nobody serves.
pub async fn draw(args: &FlashPictureArgs, shown: Shown) -> Result<(), Failure> {
    let picture = picture(&args.flash.path).await?;
    if let Some(path) = &args.svg {
        let failed = |error| Failure::from(error).during(path.display());
        std::fs::write(path, picture.svg(shown)).map_err(failed)?;
    }
    let is_coloured = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    output::report(args.flash.common.json, &picture, |picture| picture.text(shown, is_coloured))
}

async fn picture(path: &Path) -> Result<Picture, Failure> {
    let Opened { preset, device, manager } = look(path).await?;
    let geometry = device.geometry();
    let reports = device.report().await.map_err(|error| nand_failure(path, error.into()))?;
    let valid = manager.valid_by_chunk();
    let state = |state| match state {
        ChunkState::Free => "free",
        ChunkState::Open => "open",
        ChunkState::Closed => "closed",
        ChunkState::ReadOnly => "read-only",
        ChunkState::Offline => "bad",
    };
    let mut chunks = reports.iter().zip(valid).map(|(report, valid)| Drawn {
        state: state(report.state),
        written: report.write_pointer,
        valid,
        wear: report.wear,
    });
    let units = (0..geometry.units()).map(|_| chunks.by_ref().take(geometry.chunks as usize).collect()).collect();
    let wear_most = reports.iter().map(|report| report.wear).max().unwrap_or(0);
    Ok(Picture { preset: preset.map(Preset::name), chunk_sectors: geometry.sectors, wear_most, units })
}

/// A place on the scale: `part` of `whole`.
fn shade(part: u32, whole: u32) -> [u8; 3] {
    let (part, whole) = (u64::from(part.min(whole)), u64::from(whole.max(1)));
    let between = |low: u8, high: u8| (u64::from(low) * (whole - part) + u64::from(high) * part) / whole;
    std::array::from_fn(|at| between(SCALE[0][at], SCALE[1][at]) as u8)
}

impl Picture {
    fn look(&self, chunk: &Drawn, shown: Shown) -> Look {
        let digit = |tenths: u32| char::from_digit(tenths, 10).unwrap_or('#');
        match (chunk.state, shown) {
            ("bad", _) => ('x', BAD),
            (_, Shown::Wear) if chunk.wear == 0 => ('.', FREE),
            (_, Shown::Wear) => {
                let ninths = u64::from(chunk.wear) * 9;
                let mark = digit(ninths.div_ceil(u64::from(self.wear_most.max(1))) as u32);
                (mark, shade(chunk.wear, self.wear_most))
            }
            ("free", Shown::Validity) => ('.', FREE),
            ("read-only", Shown::Validity) => ('!', READ_ONLY),
            ("open", Shown::Validity) => ('o', OPEN),
            (_, Shown::Validity) => {
                let tenths = u64::from(chunk.valid) * 10 / u64::from(self.chunk_sectors);
                (digit(tenths as u32), shade(chunk.valid, self.chunk_sectors))
            }
        }
    }

    fn legend(&self, shown: Shown) -> String {
        match shown {
            Shown::Validity => {
                ". free, o open, 0 to 9 and #: closed, tenths that are valid (roots count as 0), ! read-only, x bad"
                    .into()
            }
            Shown::Wear if self.preset.is_none() => {
                "a zoned device levels its wear by itself, and does not tell how often a zone was reset; x bad".into()
            }
            Shown::Wear => {
                format!(". never reset, 1 to 9: ninths of the most, which is {} resets, x bad", self.wear_most)
            }
        }
    }

    fn text(&self, shown: Shown, is_coloured: bool) -> String {
        let mut text = String::new();
        let chunks = self.units.first().map_or(0, Vec::len);
        for first in (0..chunks).step_by(LINE_CHUNKS) {
            let end = (first + LINE_CHUNKS).min(chunks);
            text += &format!("chunks {first} to {}\n", end - 1);
            for (number, unit) in self.units.iter().enumerate() {
                text += &format!("unit {number:>4} ");
                for chunk in &unit[first..end] {
                    let (mark, [red, green, blue]) = self.look(chunk, shown);
                    match is_coloured {
                        // Black or white on the colour, whichever is read better.
                        true => {
                            let ink = if u32::from(red) + u32::from(green) + u32::from(blue) > 380 { 30 } else { 97 };
                            text += &format!("\x1b[{ink};48;2;{red};{green};{blue}m{mark}\x1b[0m");
                        }
                        false => text.push(mark),
                    }
                }
                text.push('\n');
            }
        }
        text + &self.legend(shown)
    }

    fn svg(&self, shown: Shown) -> String {
        let chunks = self.units.first().map_or(0, Vec::len);
        let (width, height) = (MARGIN + chunks * SIDE, (self.units.len() + 2) * SIDE);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
             font-size=\"{}\">\n",
            SIDE - 2
        );
        for (number, unit) in self.units.iter().enumerate() {
            let y = number * SIDE;
            svg += &format!("<text x=\"0\" y=\"{}\">unit {number}</text>\n", y + SIDE - 2);
            for (at, chunk) in unit.iter().enumerate() {
                let (_, [red, green, blue]) = self.look(chunk, shown);
                let (x, side) = (MARGIN + at * SIDE, SIDE - 1);
                svg += &format!(
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{side}\" height=\"{side}\" fill=\"#{red:02x}{green:02x}{blue:02x}\">\
                     <title>chunk {at}: {}, {} of {} written, {} valid, {} resets</title></rect>\n",
                    chunk.state, chunk.written, self.chunk_sectors, chunk.valid, chunk.wear
                );
            }
        }
        let y = height - SIDE / 2;
        let colours = match shown {
            Shown::Validity => {
                "grey free, blue open, green closed (the darker the more is valid), orange read-only, red bad"
            }
            Shown::Wear => "grey never reset, green the darker the more resets, red bad",
        };
        svg + &format!("<text x=\"0\" y=\"{y}\">{}: {colours}</text>\n</svg>\n", self.preset.unwrap_or("zones"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_a_look_of_its_own_and_shades_follow_what_is_shown() {
        let chunk = |state, valid, wear| Drawn { state, written: valid, valid, wear };
        let unit = vec![
            chunk("free", 0, 0),
            chunk("open", 3, 2),
            chunk("closed", 5, 4),
            chunk("closed", 10, 1),
            chunk("read-only", 1, 1),
            chunk("bad", 0, 4),
        ];
        let picture = Picture { preset: Some("small"), chunk_sectors: 10, wear_most: 4, units: vec![unit] };
        assert!(picture.text(Shown::Validity, false).contains("unit    0 .o5#!x\n"));
        assert!(picture.text(Shown::Wear, false).contains("unit    0 .5933x\n"));
        assert!(picture.text(Shown::Validity, true).contains("\x1b[97;48;2;208;2;27mx\x1b[0m"));
        let svg = picture.svg(Shown::Validity);
        assert_eq!(svg.matches("<rect ").count(), 6);
        assert!(svg.contains("fill=\"#d0021b\"><title>chunk 5: bad") && svg.ends_with("</svg>\n"), "{svg}");
        assert_eq!((shade(0, 10), shade(10, 10), shade(0, 0)), (SCALE[0], SCALE[1], SCALE[0]));
    }
}
