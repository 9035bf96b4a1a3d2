//! Formats of Slurm: compressed lists of hosts, and numbers of tasks of each host.

use super::checked_vars::{host, number};

/// Returns the first host of a compressed list such as `node[003-005,9],x7`, or `None` if the text up to the
/// end of that host is malformed.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list;
    loop {
        let end = rest.find(['[', ']', ',']).unwrap_or(rest.len());
        name.push_str(&rest[..end]);
        match rest.as_bytes().get(end) {
            None | Some(b',') => break,
            Some(b'[') => {
                let close = rest.find(']')?;
                name.push_str(first_index(&rest[end + 1..close])?);
                rest = &rest[close + 1..];
            }
            Some(_) => return None,
        }
    }
    host(&name).map(str::to_owned)
}

/// Returns the first index in the brackets of a host list, with its leading zeros.
fn first_index(ranges: &str) -> Option<&str> {
    let mut lows = ranges.split(',').map(|range| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        (number(low)? <= number(high)?).then_some(low)
    });
    let first = lows.next()??;
    lows.all(|low| low.is_some()).then_some(first)
}

/// Returns the number of tasks of a node in a list such as `2(x3),1`, or `None` if the list is malformed or
/// has fewer nodes.
pub(super) fn tasks_of_node(list: &str, node: usize) -> Option<usize> {
    let mut before = node;
    for item in list.split(',') {
        let (tasks, repeats) = match item.split_once("(x") {
            None => (item, 1),
            Some((tasks, repeats)) => (tasks, number(repeats.strip_suffix(')')?)?),
        };
        let tasks = number(tasks)?;
        if before < repeats {
            return Some(tasks);
        }
        before -= repeats;
    }
    None
}
