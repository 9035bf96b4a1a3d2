use std::time::{Duration, Instant};

use mp_core::Snapshot;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use serde_json::{Value, json};

use super::columns::TopTable;
use super::draw::{self, TopPalette};
use super::sample::{TopCounters, TopSample};
use super::ui_state::{TopAction, TopScreen, TopView};
use crate::programs::Process;

fn wait(thread: u32, call: &str, object: Option<u32>, processes: &[u32], ms: u64) -> Value {
    json!({
        "thread": {"id": thread, "name": format!("thread-{thread}")}, "call": call, "kind": "queue",
        "object": object, "processes": processes, "more_processes": false, "place": "src/train.rs:88",
        "waited_ms": ms, "since_ms": 7, "checks": 3, "forever": true, "steady": true,
        "ended_by_holders": object.is_some(),
        "ended_by": "could take from it", "advice": "",
    })
}

fn process(pid: u32, name: &str, state: &str, waits: &[Value]) -> Value {
    let others = if waits.is_empty() { json!([{"id": pid, "name": name}]) } else { json!([]) };
    json!({
        "pid": pid, "member": format!("member {pid}.1"), "name": name, "state": state, "parent": 10,
        "blocks": 1, "bytes": 2048 * u64::from(pid), "waits": waits, "other_threads": others,
    })
}

fn queue(block: u32, name: &str, holders: &[u32], len: u64, puts: u64) -> Value {
    json!({
        "block": block, "name": name, "holders": {"processes": holders, "messages": 0}, "kind": "queue",
        "type_name": "u64", "len": len, "capacity": 64, "closed": false, "puts": puts, "gets": puts - len,
        // One wait of up to 4 ms for each put, and 9 waits of up to 64 µs that are in both samples.
        "put_waits": {"counts": [0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, puts], "total_us": 4 * puts},
    })
}

/// Returns a recorded program: processes 10 and 11 hang, 12 computes, 13 is stopped, 14 is dead. `puts` is
/// the number of puts into its queue.
fn recorded(puts: u64) -> Snapshot {
    let holders = |pids: &[u32]| json!({"processes": pids, "messages": 0});
    let waits = [wait(11, "Queue::put", Some(0), &[], 12_345), wait(21, "Queue::put", Some(0), &[], 900)];
    serde_json::from_value(json!({
        "arena": "c7a97030d440feea", "version": "0.1.0", "taken_ms": 1_795_947_024_028_u64,
        "processes": [
            process(10, "", "running", &[wait(10, "join", None, &[11], 5000)]),
            process(11, "rank-0", "running", &waits),
            process(12, "rank-1", "running", &[]),
            process(13, "rank-2", "stopped", &[]),
            process(14, "rank-3", "dead", &[]),
        ],
        "queues": [
            queue(0, "results", &[10, 11], 64, puts), queue(3, "", &[12], 0, 7),
            queue(4, "jobs", &[12], 1, 5),
        ],
        "objects": [
            {"block": 1, "kind": "lock", "name": "weights", "holders": holders(&[12, 13]),
             "owner": {"pid": 13, "thread": 13}},
            {"block": 2, "kind": "event", "name": "", "holders": holders(&[12]), "owner": null},
        ],
        "pools": [{"block": 7, "name": "resize", "holders": holders(&[10]), "wanted_workers": 2,
                   "pending": 30, "done": 10 * puts, "failed": 1, "lost": 0, "cancelled": 0, "retried": 0,
                   "restarts": 3, "workers": [
            {"number": 0, "pid": 12, "ready": true, "chunks": 2, "busy_ms": 41_000, "note": 17},
            {"number": 1, "pid": 13, "ready": true, "chunks": 0, "busy_ms": 0, "note": null}]}],
        "memory": {"size": 1_u64 << 40, "reserved": 282_624, "allocated": 2048, "cached": 0, "blocks": 5,
                   "queued": 0, "queued_bytes": 0, "deaths": 2},
        "changed": 0,
    }))
    .unwrap()
}

/// Returns the second of two samples of the program, one second apart. `before` and `after` are the numbers
/// of puts at the two samples.
fn sample_after(before: u64, after: u64) -> TopSample {
    let stat = |cpu| Process { cpu, started: 5, resident: 6_725_632, ..Process::default() };
    let ticks = rustix::param::clock_ticks_per_second();
    let at = Instant::now();
    let before = TopCounters::of(&recorded(before), &[stat(0); 5], at);
    let (snapshot, stats) = (recorded(after), [stat(0), stat(0), stat(ticks), stat(ticks / 2), stat(0)]);
    let now = TopCounters::of(&snapshot, &stats, at + Duration::from_secs(1));
    let mut sample = TopSample::new(snapshot, &stats, &now, Some(&before));
    (sample.command, sample.root, sample.age_ms) = ("/opt/bin/train --epochs 3".into(), 10, 65_000);
    sample
}

fn sample() -> TopSample {
    sample_after(100, 1300)
}

fn view() -> TopView {
    TopView::new(None, None)
}

fn drawn(view: &mut TopView, sample: &TopSample, size: (u16, u16), colors: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal.draw(|frame| draw::program(frame, view, sample, TopPalette { colors })).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let rows = buffer.content().chunks(usize::from(buffer.area.width).max(1));
    let line =
        |row: &[ratatui::buffer::Cell]| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>();
    rows.map(|row| line(row).trim_end().to_owned()).collect()
}

fn press(view: &mut TopView, sample: &TopSample, keys: &[KeyCode]) -> TopAction {
    let press = |key: &KeyCode| view.key(KeyEvent::new(*key, KeyModifiers::NONE), sample);
    keys.iter().map(press).last().unwrap()
}

/// Returns the first words of the rows of the table that is shown.
fn shown(view: &mut TopView, sample: &TopSample) -> Vec<String> {
    let lines = lines(&drawn(view, sample, (80, 24), true));
    let rows =
        lines[5..23].iter().filter(|line| !line.is_empty() && !line.starts_with("                   "));
    rows.map(|line| line.split_whitespace().next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn top_on_80_by_24_screen_shows_the_processes() {
    let expected = [
        "10 · 65 s old · train --epochs 3                                       every 1 s",
        "4 processes · 276 KiB of memory · 2.0 KiB held · 65 queued · 3 deaths",
        "can't end by itself (press w): 10 in join, rank-0 in Queue::put",
        " Processes 5  Queues 3  Locks and objects 1  Pools 1",
        "   PID▲ NAME          CPU %      RES    HOLDS STATE   WAITS FOR",
        "     10                 0.0  6.4 MiB 20.0 KiB hangs   5.0 s join rank-0",
        "     11 rank-0          0.0  6.4 MiB 22.0 KiB hangs   12 s Queue::put results",
        "                                                      0.9 s Queue::put results (",
        "     12 rank-1        100.0  6.4 MiB 24.0 KiB running",
        "     13 rank-2         50.0  6.4 MiB 26.0 KiB stopped",
        "     14 rank-3          0.0  6.4 MiB 28.0 KiB dead",
    ];
    let lines = lines(&drawn(&mut view(), &sample(), (80, 24), true));
    assert_eq!(lines[..expected.len()], expected);
    assert_eq!(lines[23], "q quit  Tab table  s sort  r reverse  w why  p pause  ? help  / filter");
}

#[test]
fn tab_key_in_top_shows_the_other_tables() {
    let (mut view, sample) = (view(), sample());
    press(&mut view, &sample, &[KeyCode::Tab]);
    let queues = lines(&drawn(&mut view, &sample, (80, 24), true));
    let expected = [
        "   #▲ QUEUE       FILL     MESSAGES  PUTS/S  GETS/S    PUT WAIT    GET WAIT WAIT",
        "    0 results     ██████      64/64    1200    1200 4.1ms/4.1ms                2",
        "    3             ░░░░░░       0/64       0       0                            0",
        "    4 jobs        █░░░░░       1/64       0       0                            0",
    ];
    assert_eq!(queues[4..8], expected);
    press(&mut view, &sample, &[KeyCode::Tab]);
    let objects = lines(&drawn(&mut view, &sample, (80, 24), true));
    assert_eq!(objects[5], "    1 weights        lock       rank-2             0");
    assert_eq!(objects[6], "", "an event without a name and without waiters is not shown");
    press(&mut view, &sample, &[KeyCode::Tab]);
    let pools = lines(&drawn(&mut view, &sample, (80, 24), true));
    assert_eq!(
        pools[4..6],
        [
            "   #▲ POOL         BUSY LONGEST PENDING      DONE   DONE/S FAILED  LOST REPLACED",
            "    7 resize        1/2    41 s      30     13000    12000      1     0        3",
        ]
    );
    press(&mut view, &sample, &[KeyCode::Enter]);
    let workers = lines(&drawn(&mut view, &sample, (80, 24), true)).join("\n");
    assert!(workers.contains("     0   12  busy          2  41 s      17"), "{workers}");
}

#[test]
fn top_on_200_by_50_screen_shows_all_tables() {
    let lines = lines(&drawn(&mut view(), &sample(), (200, 50), true));
    let all = lines.join("\n");
    for part in [
        " Processes 5",
        " Queues 3",
        " Locks and objects 1",
        "results",
        "weights",
        "rank-1, rank-2",
        "(thread-21)",
    ] {
        assert!(all.contains(part), "{part} is not in this:\n{all}");
    }
}

#[test]
fn top_draws_terminals_of_any_size() {
    let sample = sample();
    let explanation = TopScreen::Explanation(u16::MAX);
    for screen in [TopScreen::Tables, TopScreen::Help, explanation, TopScreen::Filter("x".into())] {
        let sizes =
            [0, 1, 2, 3, 7, 20, 59, 130].map(|width| [0, 1, 2, 3, 4, 6, 45].map(|height| (width, height)));
        for (width, height) in sizes.into_iter().flatten() {
            let mut view = view();
            view.screen.clone_from(&screen);
            press(&mut view, &sample, &[KeyCode::End]);
            drawn(&mut view, &sample, (width, height), true);
        }
    }
}

#[test]
fn top_uses_colours_only_if_enabled() {
    for (colors, expected) in [(true, vec![Color::Cyan, Color::Magenta, Color::Red]), (false, vec![])] {
        let buffer = drawn(&mut view(), &sample(), (200, 50), colors);
        let mut found: Vec<Color> = Vec::new();
        for cell in buffer.content() {
            found.extend([cell.fg, cell.bg].iter().filter(|color| **color != Color::Reset));
        }
        found.sort_by_key(|color| color.to_string());
        found.dedup();
        assert_eq!(found, expected);
    }
}

#[test]
fn sort_and_reverse_keys_change_the_order_in_top() {
    let (mut view, sample) = (view(), sample());
    let cpu = [KeyCode::Char('s'), KeyCode::Char('s')];
    press(&mut view, &sample, &cpu);
    assert_eq!(shown(&mut view, &sample)[..2], ["12", "13"], "the largest share first");
    press(&mut view, &sample, &[KeyCode::Char('r')]);
    assert_eq!(shown(&mut view, &sample)[3..], ["13", "12"]);
}

#[test]
fn selected_row_of_top_stays_selected_in_new_order() {
    let (mut view, sample) = (view(), sample());
    press(&mut view, &sample, &[KeyCode::Down, KeyCode::Down, KeyCode::Char('r')]);
    let rows = view.rows(&sample, TopTable::Processes);
    let at = view.position(&sample, TopTable::Processes, &rows);
    assert_eq!(TopTable::Processes.id(&sample, rows[at]), 12);
    press(&mut view, &sample, &[KeyCode::End]);
    assert_eq!(view.position(&sample, TopTable::Processes, &rows), 4);
}

#[test]
fn filter_in_top_keeps_rows_that_contain_its_text() {
    let (mut view, sample) = (view(), sample());
    let letters = "/RESULTS".chars().map(KeyCode::Char).collect::<Vec<_>>();
    press(&mut view, &sample, &letters);
    assert_eq!(shown(&mut view, &sample), ["11"], "only that process waits for the queue");
    press(&mut view, &sample, &[KeyCode::Enter]);
    assert_eq!((view.filter.as_str(), &view.screen), ("RESULTS", &TopScreen::Tables));
    press(&mut view, &sample, &[KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Esc]);
    assert_eq!(view.filter, "RESULTS", "Esc keeps the filter from before");
}

#[test]
fn why_in_top_explains_the_selected_row_and_the_hang() {
    let (mut view, sample) = (view(), sample());
    press(&mut view, &sample, &[KeyCode::Down, KeyCode::Down, KeyCode::Char('w')]);
    let text = lines(&drawn(&mut view, &sample, (80, 24), true)).join("\n");
    for part in [
        "← no other process",
        "12 rank-1: is in no call",
        "10: join of 11 rank-0",
        "queue \"results\" (#0, 64/64)",
    ] {
        assert!(text.contains(part), "{part} is not in this:\n{text}");
    }
    assert_eq!(press(&mut view, &sample, &[KeyCode::Esc]), TopAction::Stay, "closes the explanation");
    assert_eq!(press(&mut view, &sample, &[KeyCode::Esc]), TopAction::Quit);
}

#[test]
fn rows_of_top_scroll_to_show_the_selected_row() {
    let (mut view, sample) = (view(), sample());
    press(&mut view, &sample, &[KeyCode::End]);
    let lines = lines(&drawn(&mut view, &sample, (80, 9), true));
    assert!(lines[5].starts_with("     12") && lines[7].starts_with("     14"), "{lines:?}");
}

#[test]
fn top_shows_no_rate_of_a_queue_in_a_reused_block() {
    assert_eq!(sample_after(1300, 100).rates[0], None);
    assert_eq!(sample_after(100, 350).rates[0], Some((250.0, 250.0)));
}

#[test]
fn end_of_the_program_replaces_the_alarm_in_top() {
    let (mut view, sample) = (view(), sample());
    view.end = Some(super::ENDED.into());
    let lines = lines(&drawn(&mut view, &sample, (80, 24), true));
    assert_eq!(lines[2], "The program has ended. This is its last state; q quits.");
    assert!(lines[0].ends_with("last state") && lines[6].contains("rank-0"), "{lines:?}");
}

#[test]
fn top_reads_a_costly_program_less_often() {
    let (mut view, sample) = (view(), sample());
    view.record_cost(Duration::from_millis(3));
    assert_eq!(view.pace(), Duration::from_secs(1));
    view.record_cost(Duration::from_micros(16_100));
    assert_eq!(view.pace(), Duration::from_millis(2000), "120 times the cost");
    let lines = lines(&drawn(&mut view, &sample, (80, 24), true));
    assert!(lines[0].ends_with("every 2 s"), "{}", lines[0]);
    // The user may choose a shorter interval.
    press(&mut view, &sample, &[KeyCode::Char('-')]);
    view.record_cost(Duration::from_micros(16_100));
    assert_eq!(view.pace(), Duration::from_secs(1));
}

#[test]
fn plus_and_minus_keys_choose_the_interval_of_top() {
    let (mut view, sample) = (view(), sample());
    press(&mut view, &sample, &[KeyCode::Char('+'), KeyCode::Char('+')]);
    assert_eq!(view.interval, Duration::from_secs(5));
    press(&mut view, &sample, &[KeyCode::Char('-'); 9]);
    assert_eq!(view.interval, Duration::from_millis(100));
}

#[test]
fn top_and_why_find_the_same_hanging_processes() {
    let sample = sample();
    assert_eq!(sample.hanging.iter().copied().collect::<Vec<_>>(), [10, 11]);
    let hangs = |pid| crate::why::explain(&sample.snapshot, &[pid]).hangs;
    assert_eq!([10, 11, 12, 13, 14].map(hangs), [true, true, false, false, false]);
}
