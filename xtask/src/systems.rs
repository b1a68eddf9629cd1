//! The look of each compared system: one colour and one marker, the same in every chart.
//!
//! A reader who has learnt in one chart that blue circles are `kcuc` finds them in all others, and a curve of the
//! papers has the colour and marker of the system that it belongs to, dashed. Colours are those of Okabe and Ito and of
//! Tol, which readers with any of the usual colour deficiencies can tell apart; marker and label say the same again.
//! Linux's own servers are grey.

/// A colour of the charts, with its values on a light and on a dark page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    /// Place in [`COLOURS`], which is also the name of the style sheet's variable.
    pub index: usize,
}

/// The values of the colours, light and dark.
pub const COLOURS: [(&str, &str); 22] = [
    ("#0072b2", "#56b4e9"), // 0 blue
    ("#56b4e9", "#a6d8f5"), // 1 sky blue
    ("#d55e00", "#ff8c42"), // 2 vermilion
    ("#cc79a7", "#e6a5c9"), // 3 purple
    ("#009e73", "#2fcf9f"), // 4 green
    ("#e69f00", "#f5c04a"), // 5 orange
    ("#332288", "#9a8cf0"), // 6 indigo
    ("#2f343b", "#d3d8df"), // 7 grey, darkest
    ("#5f6771", "#aab2bd"), // 8 grey
    ("#8b939d", "#868f9b"), // 9 grey
    ("#b1b8c0", "#626b77"), // 10 grey, lightest
    ("#7a6a00", "#d9cb4e"), // 11 olive
    ("#882255", "#e07aa8"), // 12 wine
    ("#117733", "#6fcf87"), // 13 dark green
    ("#08306b", "#deebf7"), // 14 scale of blues, from the most important to the least
    ("#08519c", "#c6dbef"), // 15
    ("#2171b5", "#9ecae1"), // 16
    ("#4292c6", "#6baed6"), // 17
    ("#6baed6", "#4292c6"), // 18
    ("#44aa99", "#7fdccb"), // 19 teal
    ("#a0522d", "#d9a07f"), // 20 brown
    ("#999933", "#c9c96a"), // 21 sand
];

/// The shape of a system's points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// A filled circle.
    Circle,
    /// An open circle.
    Ring,
    /// A filled square.
    Square,
    /// A filled diamond.
    Diamond,
    /// A filled triangle with its point at the top.
    Triangle,
    /// A filled triangle with its point at the bottom.
    TriangleDown,
    /// An upright cross.
    Plus,
    /// A diagonal cross.
    Cross,
}

/// The look of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Colour of lines, bars and points.
    pub colour: Colour,
    /// Shape of points.
    pub marker: Marker,
}

/// A row of the table: names in the results, colour, marker. Names of one row are one system in different experiments.
type Row = (&'static [&'static str], usize, Marker);

/// The systems, in the order in which they stand in bars and legends.
const SYSTEMS: &[Row] = &[
    (
        &["COPS kcuc", "COPS", "cops", "COPS coroutine", "COPS coroutine-yield", "adaptive", "COPS adaptive"],
        0,
        Marker::Circle,
    ),
    (&["COPS kcut", "COPS coroutine-priority", "COPS coroutine-wake"], 1, Marker::Square),
    (&["COPS ktut", "COPS thread-yield"], 2, Marker::Diamond),
    (&["COPS ktut-wait", "COPS thread-wait"], 3, Marker::TriangleDown),
    (&["COPS ktuc", "ring", "COPS imsic, to handler"], 4, Marker::Triangle),
    (&["COPS ktuc-epoll", "direct", "COPS imsic, to coroutine"], 5, Marker::Cross),
    (&["COPS microkernel", "asynchronous", "COPS asynchronous"], 6, Marker::Diamond),
    (&["COPS kernel, to handler"], 0, Marker::Square),
    (&["COPS kernel, to coroutine"], 1, Marker::Circle),
    (&["COPS uintc, to handler", "by instructions"], 2, Marker::Plus),
    (&["COPS uintc, to coroutine"], 3, Marker::Plus),
    (&["together", "by stores"], 19, Marker::Plus),
    (&["synchronous", "synchronous, short"], 8, Marker::Ring),
    (&["synchronous, long"], 9, Marker::Square),
    (&["system call"], 20, Marker::Cross),
    (&["Linux epoll-each"], 7, Marker::Circle),
    (&["Linux epoll"], 7, Marker::Ring),
    (&["Linux io_uring-each"], 8, Marker::Square),
    (&["Linux io_uring"], 8, Marker::Diamond),
    (&["Linux thread", "Linux wait", "Linux pthreads"], 9, Marker::TriangleDown),
    (&["Linux thread3"], 10, Marker::Triangle),
    (&["Linux thread3-yield", "Linux yield"], 10, Marker::Cross),
    (&["Linux echo"], 9, Marker::Plus),
    (&["Linux", "Linux wake-eventfd"], 7, Marker::Square),
    (&["Linux wake-pipe"], 8, Marker::Circle),
    (&["Linux wake-signal"], 9, Marker::Diamond),
    (&["Linux signal-handler"], 10, Marker::Square),
    (&["Linux go"], 11, Marker::Square),
    (&["Linux tokio", "tokio-multi-thread"], 12, Marker::Circle),
    (&["tokio-current-thread"], 12, Marker::Ring),
    (&["embassy"], 13, Marker::Triangle),
    (&["async-executor"], 20, Marker::Diamond),
    (&["seL4"], 13, Marker::Square),
    (&["COPS, 1 hart", "level 0"], 14, Marker::Circle),
    (&["COPS, 2 harts", "level 1"], 2, Marker::Square),
    (&["COPS, 3 harts", "level 2"], 4, Marker::Diamond),
    (&["COPS, 4 harts", "level 3"], 5, Marker::Square),
    (&["yield"], 0, Marker::Ring),
    (&["wake"], 2, Marker::Circle),
    (&["spawn", "join"], 4, Marker::Square),
    (&["steals"], 16, Marker::Square),
    (&["lock-spins"], 5, Marker::Circle),
    (&["atomic-retries"], 3, Marker::Circle),
    (&["heap"], 15, Marker::Square),
    (&["pages"], 18, Marker::Square),
    (&["p50", "answered"], 0, Marker::TriangleDown),
    (&["mean"], 19, Marker::Circle),
    (&["p99"], 2, Marker::Triangle),
    (&["p99.9"], 3, Marker::Square),
    (&["max"], 21, Marker::Cross),
    (&["asked for"], 9, Marker::Ring),
    (&["peak"], 5, Marker::Plus),
];

/// Names of the papers' curves that do not name the system as our results do.
const CITED: &[(&str, &str)] = &[
    ("kcuc", "COPS kcuc"),
    ("kcut", "COPS kcut"),
    ("ktut", "COPS ktut"),
    ("ktuc", "COPS ktuc"),
    ("coroutines", "COPS coroutine"),
    ("threads", "COPS thread-yield"),
    ("threads, about", "COPS thread-yield"),
    ("1 hart", "COPS, 1 hart"),
    ("ring job", "COPS"),
];

/// Beginning of the names of the papers' curves.
pub const PAPER: &str = "paper: ";

/// Looks for names without an entry, which only experiments of one's own have.
const SPARE: [(usize, Marker); 8] = [
    (0, Marker::Circle),
    (2, Marker::Square),
    (4, Marker::Triangle),
    (5, Marker::Diamond),
    (3, Marker::TriangleDown),
    (6, Marker::Cross),
    (12, Marker::Ring),
    (20, Marker::Plus),
];

/// Returns the row of a system, which is also its place among others.
pub fn place(name: &str) -> Option<usize> {
    let ours = name
        .strip_prefix(PAPER)
        .map_or(name, |paper| CITED.iter().find(|(cited, _)| *cited == paper).map_or(paper, |(_, ours)| *ours));
    SYSTEMS.iter().position(|(names, ..)| names.contains(&ours))
}

/// Returns the look of a system, if it has an entry.
pub fn look(name: &str) -> Option<Look> {
    place(name).map(|place| Look { colour: Colour { index: SYSTEMS[place].1 }, marker: SYSTEMS[place].2 })
}

/// Returns the look of a name without an entry, which is the `number`th of its chart.
pub fn spare(number: usize) -> Look {
    let (index, marker) = SPARE[number % SPARE.len()];
    Look { colour: Colour { index }, marker }
}

/// Writes the values of the colours as variables of a style sheet, for a light page or a dark one.
pub fn variables(dark: bool) -> String {
    let value = |(light, at_night): &(&str, &str)| if dark { at_night.to_string() } else { light.to_string() };
    COLOURS.iter().enumerate().map(|(index, colour)| format!("--c{index}:{};", value(colour))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_systems_look_alike() {
        for (first, (names, colour, marker)) in SYSTEMS.iter().enumerate() {
            assert!(*colour < COLOURS.len(), "{names:?}");
            for (others, other_colour, other_marker) in &SYSTEMS[first + 1..] {
                assert!((colour, marker) != (other_colour, other_marker), "{names:?} looks like {others:?}");
                assert!(!names.iter().any(|name| others.contains(name)), "{names:?} and {others:?} share a name");
            }
        }
    }

    #[test]
    fn the_papers_curves_look_like_the_systems_they_belong_to() {
        assert_eq!(look("paper: ktut"), look("COPS ktut"));
        assert_eq!(look("paper: adaptive"), look("adaptive"));
        assert!(look("paper: threads, about").is_some() && look("COPS kcuc") != look("COPS ktut"));
        assert_eq!((look("nobody"), look("paper: nobody")), (None, None));
        assert_ne!(spare(0), spare(1));
        assert_eq!(spare(0), spare(SPARE.len()));
    }

    #[test]
    fn every_server_and_model_has_an_entry() {
        for server in crate::linux::SERVERS {
            assert!(look(&format!("Linux {server}")).is_some(), "{server}");
        }
        for model in crate::experiments::MODELS {
            assert!(look(&format!("COPS {model}")).is_some(), "{model}");
        }
    }
}
