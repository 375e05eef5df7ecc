// SPDX-License-Identifier: GPL-2.0
//! `farblk top` on a terminal.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row as Cells, Table, TableState};
use ratatui::{DefaultTerminal, Frame};

use super::{Order, title};
use crate::clock::IntervalTimer;
use crate::cmd::Context;
use crate::cmd::sample::{Row, Sample, Window};
use crate::cmd::stats;
use crate::counters::{BUCKETS, Histogram, Lack};
use crate::error::{Code, Error};
use crate::size;

/// The number of intervals that a sparkline shows.
const HISTORY: usize = 30;
/// The blanks between two columns.
const SPACING: u16 = 2;
/// The height of the histograms.
const HISTOGRAM: u16 = 14;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const KEYS: &str = "q quit   s sort   h histogram   up/down select";

/// What is on the screen.
struct View {
    title: String,
    order: Order,
    is_histogram_shown: bool,
    table: TableState,
    window: Option<Window>,
    lack: Option<Lack>,
    /// The I/Os per second in the last intervals, by kind and name.
    history: BTreeMap<(&'static str, String), VecDeque<u64>>,
}

impl View {
    fn new() -> Self {
        Self {
            title: "farblk top".into(),
            order: Order::Ios,
            is_histogram_shown: false,
            table: TableState::new().with_selected(0),
            window: None,
            lack: None,
            history: BTreeMap::new(),
        }
    }

    /// Takes what came in an interval.
    fn update(&mut self, title: String, mut window: Window, lack: Option<Lack>) {
        let key = |row: &Row| (row.object.kind.text(), row.object.name.clone());
        let keys: Vec<_> = window.rows.iter().map(key).collect();
        self.history.retain(|key, _| keys.contains(key));
        for row in &window.rows {
            let history = self.history.entry(key(row)).or_default();
            let rate = window.rate(row.ios()).unwrap_or(0.0);
            history.push_back(rate.round() as u64);
            if history.len() > HISTORY {
                history.pop_front();
            }
        }
        let selected = self.selected().map(key);
        self.order.sort(&mut window.rows);
        let place = window
            .rows
            .iter()
            .position(|row| Some(key(row)) == selected);
        self.table.select(Some(place.unwrap_or(0)));
        (self.title, self.window, self.lack) = (title, Some(window), lack);
    }

    fn selected(&self) -> Option<&Row> {
        self.window.as_ref()?.rows.get(self.table.selected()?)
    }

    /// Obeys a key; returns false if it ends the command.
    fn key(&mut self, key: KeyEvent) -> bool {
        let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if is_interrupt => return false,
            KeyCode::Char('s') => {
                self.order = self.order.next();
                if let Some(window) = &mut self.window {
                    self.order.sort(&mut window.rows);
                }
            }
            KeyCode::Char('h') => self.is_histogram_shown = !self.is_histogram_shown,
            KeyCode::Down | KeyCode::Char('j') => {
                let last = self.window.as_ref().map_or(0, |window| window.rows.len());
                let next = self.table.selected().map_or(0, |place| place + 1);
                self.table.select(Some(next.min(last.saturating_sub(1))));
            }
            KeyCode::Up | KeyCode::Char('k') => {
                let place = self.table.selected().unwrap_or(0);
                self.table.select(Some(place.saturating_sub(1)));
            }
            _ => {}
        }
        true
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let histogram = if self.is_histogram_shown {
            HISTOGRAM
        } else {
            0
        };
        let [head, body, histograms, foot, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(histogram),
            Constraint::Length(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let title = format!("{}  sorted by {}", self.title, self.order.text());
        frame.render_widget(Paragraph::new(title.bold()), head);
        self.draw_table(frame, body);
        if self.is_histogram_shown {
            self.draw_histograms(frame, histograms);
        }
        let words = match (&self.lack, self.selected()) {
            (Some(lack), _) => Line::from(lack.why.clone()).fg(Color::Yellow),
            (None, Some(row)) => Line::from(trouble(row)),
            (None, None) => Line::from("there is no map and no export"),
        };
        frame.render_widget(Paragraph::new(words), foot);
        frame.render_widget(Paragraph::new(KEYS.dim()), keys);
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let Some(window) = &self.window else {
            frame.render_widget(Paragraph::new("looking for one interval ..."), area);
            return;
        };
        // Without the time, which the title has.
        let mut heading: Vec<String> = stats::heading(true)[1..]
            .iter()
            .map(|&text| text.to_owned())
            .collect();
        heading.push("r/s + w/s".into());
        let rows: Vec<_> = window
            .rows
            .iter()
            .map(|row| {
                let mut cells = stats::cells(window, row).split_off(1);
                let key = (row.object.kind.text(), row.object.name.clone());
                cells.push(sparkline(self.history.get(&key)));
                cells
            })
            .collect();
        let width = |column: usize| {
            let cells = rows.iter().chain([&heading]);
            let widths = cells.map(|cells| cells[column].chars().count());
            widths.max().unwrap_or(0).try_into().unwrap_or(u16::MAX)
        };
        let widths: Vec<_> = (0..heading.len()).map(width).collect();
        let shown = fitting(&widths, area.width);
        heading.truncate(shown);
        let widths = widths[..shown]
            .iter()
            .map(|width| Constraint::Length(*width));
        let styled = rows.iter().map(|cells| {
            let state = |(column, text): (usize, &String)| match column {
                2 => Cell::from(text.clone()).style(style(text)),
                _ => Cell::from(text.clone()),
            };
            Cells::new(cells.iter().enumerate().take(shown).map(state))
        });
        let table = Table::new(styled, widths)
            .column_spacing(SPACING)
            .header(Cells::new(heading).underlined())
            .row_highlight_style(Style::new().reversed());
        frame.render_stateful_widget(table, area, &mut self.table);
    }

    fn draw_histograms(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(row) = self.selected() else { return };
        let halves: [Rect; 2] =
            Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
        let latency = &row.stats.latency;
        let both = [("reads", latency.read), ("writes", latency.write)];
        for (half, (what, histogram)) in halves.into_iter().zip(both) {
            let mut lines = vec![Line::from(format!("{what} of {}", row.object.name)).bold()];
            let height = usize::from(half.height.saturating_sub(1));
            let width = usize::from(half.width);
            let bars = histogram.map(|histogram| bars(&histogram, height, width));
            lines.extend(bars.into_iter().flatten().map(Line::from));
            frame.render_widget(Paragraph::new(lines), half);
        }
    }
}

/// The number of columns that have room, at least one: a column is shown whole, or not at all.
fn fitting(widths: &[u16], room: u16) -> usize {
    let mut end = 0u16;
    let fits = widths.iter().take_while(|width| {
        end = end.saturating_add(**width);
        let has_room = end <= room;
        end = end.saturating_add(SPACING);
        has_room
    });
    fits.count().max(1)
}

/// The colour of a state.
fn style(state: &str) -> Style {
    match state {
        "live" | "online" => Style::new().fg(Color::Green),
        "failed" | "stale" | "evicted" | "error" | "unavailable" => Style::new().fg(Color::Red),
        "disabled" | "-" => Style::new(),
        _ => Style::new().fg(Color::Yellow),
    }
}

/// Why I/O of a row does not flow, and for how long it may wait.
fn trouble(row: &Row) -> String {
    let object = &row.object;
    let mut text = object.name.clone();
    if let Some(ms) = object.gives_up_ms {
        let left = size::human_duration(Duration::from_millis(ms));
        text += &format!("  gives up in {left}");
    }
    if let Some(last) = &object.last_error {
        text += &format!("  last error: {}", last.text);
    }
    text.replace(char::is_control, "?")
}

/// One character for each value, as high as the value.
fn sparkline(values: Option<&VecDeque<u64>>) -> String {
    let values = values.into_iter().flatten();
    let most = values.clone().max().copied().unwrap_or(0).max(1);
    let bar = |value: &u64| {
        let height = value.saturating_mul(BARS.len() as u64 - 1).div_ceil(most);
        BARS[usize::try_from(height).unwrap_or(0).min(BARS.len() - 1)]
    };
    values.map(bar).collect()
}

/// A line for each bucket between the first and the last one with I/O, `height` lines at most: the
/// slowest ones are kept.
fn bars(histogram: &Histogram, height: usize, width: usize) -> Vec<String> {
    let used: Vec<_> = (0..BUCKETS)
        .filter(|bucket| histogram.0[*bucket] > 0)
        .collect();
    let (Some(first), Some(last)) = (used.first(), used.last()) else {
        return vec!["no I/O in this interval".into()];
    };
    let first = (*first).max((last + 1).saturating_sub(height));
    let most = histogram.0.iter().max().copied().unwrap_or(1).max(1) as f64;
    let line = |bucket: usize| {
        let end = match Histogram::end_ns(bucket) {
            Some(ns) => format!("< {}", size::human_duration(Duration::from_nanos(ns))),
            None => "longer".into(),
        };
        let count = histogram.0[bucket];
        let room = width.saturating_sub(24) as f64;
        let bar = "█".repeat((count as f64 / most * room).ceil() as usize);
        format!("{end:>10} {count:>9} {bar}")
    };
    (first..=*last).map(line).collect()
}

/// Runs until the user ends it, or for `count` intervals.
pub fn run(context: &Context, interval: Duration, count: Option<u64>) -> Result<(), Error> {
    let mut terminal = ratatui::try_init().map_err(|e| failed(&e))?;
    let result = follow(context, &mut terminal, interval, count);
    ratatui::restore();
    result.map_err(|e| failed(&e))
}

fn failed(e: &io::Error) -> Error {
    let error = Error::new(Code::Io, "cannot use the terminal", e.to_string());
    error.hint("farblk top -b  # plain text")
}

fn follow(
    context: &Context,
    terminal: &mut DefaultTerminal,
    interval: Duration,
    count: Option<u64>,
) -> io::Result<()> {
    let mut view = View::new();
    let mut before = Sample::take(context);
    let mut timer = IntervalTimer::new(interval);
    for _ in 0..count.unwrap_or(u64::MAX) {
        let end = Instant::now() + timer.left();
        loop {
            terminal.draw(|frame| view.draw(frame))?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !event::poll(left)? {
                break;
            }
            if let Event::Key(key) = event::read()? {
                if key.kind == KeyEventKind::Press && !view.key(key) {
                    return Ok(());
                }
            }
        }
        let now = Sample::take(context);
        let window = now.since(Some(&before));
        view.update(title(context, &window), window, now.lack.clone());
        before = now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::cmd::tests::Host;

    fn screen(view: &mut View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(150, 24)).expect("a terminal");
        terminal.draw(|frame| view.draw(frame)).expect("a frame");
        let buffer = terminal.backend().buffer();
        let row = |y| {
            (0..150)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        let rows = (0..24).map(|y| row(y).trim_end().to_owned());
        rows.collect::<Vec<_>>().join("\n")
    }

    fn press(view: &mut View, code: KeyCode) -> bool {
        view.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn update(view: &mut View, context: &Context, before: &Sample) -> Sample {
        let now = Sample::take(context);
        let window = now.since(Some(before));
        view.update(title(context, &window), window, now.lack.clone());
        now
    }

    #[test]
    fn the_screen_shows_what_the_keys_choose() {
        let host = Host::with_io("top-screen");
        let context = host.context();
        let mut view = View::new();
        assert!(screen(&mut view).contains("looking for one interval"));
        let before = Sample::take(&context);
        host.more_reads(1000);
        let last = update(&mut view, &context, &before);
        let text = screen(&mut view);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].contains("1 map, 2 exports"), "{text}");
        assert!(lines[0].ends_with("sorted by I/Os"), "{text}");
        assert!(lines[1].starts_with("KIND"), "{text}");
        assert!(lines[2].starts_with("map     scratch  live"), "{text}");
        assert!(lines[2].ends_with('█'), "{text}");
        assert!(lines[23].starts_with("q quit"), "{text}");
        assert!(!text.contains("reads of"), "{text}");
        assert!(press(&mut view, KeyCode::Char('h')));
        let text = screen(&mut view);
        assert!(text.contains("reads of scratch"), "{text}");
        assert!(text.contains("< 4.1 us      1000 █"), "{text}");
        // The selected object stays selected, wherever it moves.
        press(&mut view, KeyCode::Down);
        assert!(screen(&mut view).contains("reads of vol"));
        press(&mut view, KeyCode::Char('s'));
        assert!(screen(&mut view).contains("sorted by bytes"));
        update(&mut view, &context, &last);
        assert!(screen(&mut view).contains("reads of vol"));
        assert!(!press(&mut view, KeyCode::Char('q')));
    }

    /// What does not fit is left out as a whole.
    #[test]
    fn a_narrow_screen_has_fewer_columns() {
        let host = Host::with_io("top-narrow");
        let context = host.context();
        let mut view = View::new();
        let before = Sample::take(&context);
        host.more_reads(1000);
        update(&mut view, &context, &before);
        for (width, has, lacks) in [
            (80, "r us p50/p99/p99.9", "RETRIES"),
            (40, "STATE", "p99"),
            (150, "r/s + w/s", "nothing"),
        ] {
            let mut terminal = Terminal::new(TestBackend::new(width, 10)).expect("a terminal");
            terminal.draw(|frame| view.draw(frame)).expect("a frame");
            let buffer = terminal.backend().buffer();
            let row = |y| {
                (0..width)
                    .map(|x| buffer[(x, y)].symbol())
                    .collect::<String>()
            };
            assert!(
                row(1).contains(has) && !row(1).contains(lacks),
                "{width}: {}",
                row(1)
            );
            assert!(row(2).starts_with("map     scratch  live"), "{}", row(2));
        }
    }

    #[test]
    fn trouble_is_on_the_screen() {
        let host = Host::with_io("top-trouble");
        host.kernel.put("maps/scratch", "state", "reconnecting");
        host.kernel.put("maps/scratch", "gives_up_ms", "58300");
        host.kernel
            .put("maps/scratch", "last_error", "ECONNREFUSED nobody listens");
        let context = host.context();
        let mut view = View::new();
        let before = Sample::take(&context);
        update(&mut view, &context, &before);
        let text = screen(&mut view);
        let want = "scratch  gives up in 58.3 s  last error: nobody listens";
        assert!(text.contains(want), "{text}");
        // A small terminal is no reason to panic.
        let mut terminal = Terminal::new(TestBackend::new(3, 2)).expect("a terminal");
        press(&mut view, KeyCode::Char('h'));
        terminal.draw(|frame| view.draw(frame)).expect("a frame");
    }

    #[test]
    fn bars_have_the_slowest_buckets() {
        let mut buckets = [0; BUCKETS];
        buckets[0] = 4;
        buckets[9] = 1;
        buckets[31] = 2;
        let lines = bars(&Histogram(buckets), 3, 40);
        assert_eq!(lines.len(), 3);
        assert!(
            lines[2].starts_with("    longer         2 ███"),
            "{lines:?}"
        );
        assert_eq!(
            bars(&Histogram([0; BUCKETS]), 3, 40),
            ["no I/O in this interval"]
        );
        let values = VecDeque::from([0, 1, 7]);
        assert_eq!(sparkline(Some(&values)), "▁▂█");
        assert_eq!(sparkline(None), "");
    }
}
