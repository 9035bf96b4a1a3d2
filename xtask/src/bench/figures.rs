//! Figures that the benchmarks write: reading and checking.

use serde_json::Value;

/// Figures of one run of the benchmarks.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) machine: Vec<(String, String)>,
    pub(crate) rows: Vec<Row>,
}

/// Figures of one benchmark.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) unit: String,
    pub(crate) lower_is_better: bool,
    pub(crate) ours: Option<f64>,
    /// (p90 − p10) / median.
    pub(crate) spread: Option<f64>,
    pub(crate) limit: Option<f64>,
    /// Ratio of our figure to the limit, if it was measured round by round.
    pub(crate) of_limit: Option<f64>,
    pub(crate) peers: Vec<(String, f64)>,
}

impl Row {
    pub(crate) fn better(&self) -> &'static str {
        if self.lower_is_better { "lower" } else { "higher" }
    }
}

impl Figures {
    pub(crate) fn read(json: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(json).map_err(|e| e.to_string())?;
        let machine = value["machine"].as_object().ok_or("`machine` is no object")?;
        let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let rows = value["rows"].as_array().ok_or("`rows` is no list")?;
        let rows: Vec<Row> = rows
            .iter()
            .enumerate()
            .map(|(number, value)| row(value).map_err(|e| format!("row {}: {e}", number + 1)))
            .collect::<Result<_, _>>()?;
        for (number, row) in rows.iter().enumerate() {
            if rows[..number].iter().any(|other| other.id == row.id) {
                return Err(format!("row {}: a second `{}`", number + 1, row.id));
            }
        }
        Ok(Self { machine: machine.iter().map(|(name, value)| (name.clone(), plain(value))).collect(), rows })
    }

    /// Returns all peers that any row names, in the order of their first rows.
    pub(crate) fn peers(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for (name, _) in self.rows.iter().flat_map(|row| &row.peers) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }
}

fn row(value: &Value) -> Result<Row, String> {
    let text = |key: &str| match value[key].as_str() {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("`{key}` is no text")),
    };
    let number = |key: &str| match value.get(key) {
        None => Err(format!("`{key}` is missing")),
        Some(Value::Null) => Ok(None),
        Some(value) => figure(value).map(Some).map_err(|e| format!("`{key}` {e}")),
    };
    let peers = match value.get("peers") {
        Some(Value::Object(peers)) => peers,
        _ => return Err("`peers` is no object".to_owned()),
    };
    // The value is null for a peer that can't do this work.
    let peers = peers.iter().filter(|(_, value)| !value.is_null());
    let peers =
        peers.map(|(name, value)| Ok((name.clone(), figure(value).map_err(|e| format!("{name} {e}"))?)));
    Ok(Row {
        id: text("id")?,
        unit: text("unit")?,
        lower_is_better: match text("better")?.as_str() {
            "lower" => true,
            "higher" => false,
            other => return Err(format!("`better` is `{other}`, not lower or higher")),
        },
        ours: number("ours")?,
        spread: number("spread")?,
        limit: number("limit")?,
        of_limit: value.get("of_limit").map_or(Ok(None), |_| number("of_limit"))?,
        peers: peers.collect::<Result<_, String>>()?,
    })
}

fn figure(value: &Value) -> Result<f64, String> {
    value.as_f64().filter(|v| v.is_finite() && *v >= 0.0).ok_or_else(|| format!("is {value}, not a figure"))
}

/// Formats a figure with three significant digits in a suitable unit.
pub(crate) fn human(value: f64, unit: &str) -> String {
    let steps: &[(f64, &str)] = match unit {
        "ns" => &[(1e9, " s"), (1e6, " ms"), (1e3, " µs"), (0.0, " ns")],
        "B/s" | "bytes/s" => &[(1e9, " GB/s"), (1e6, " MB/s"), (1e3, " KB/s"), (0.0, " B/s")],
        rate if rate.ends_with("/s") && rate != "GB/s" => {
            &[(1e9, " G/s"), (1e6, " M/s"), (1e3, " K/s"), (0.0, " /s")]
        }
        _ => return format!("{} {unit}", digits(value)),
    };
    let (size, name) = steps.iter().find(|(size, _)| value >= *size).unwrap_or(&(0.0, ""));
    format!("{}{name}", if *size > 0.0 { digits(value / size) } else { digits(value) })
}

fn digits(value: f64) -> String {
    let places = match value {
        v if v == 0.0 || v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.0995 => 2,
        // Small figures, such as calls for each message, keep enough digits to differ from zero.
        _ => 4,
    };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_formatted_by_magnitude() {
        assert_eq!(human(270.0, "ns"), "270 ns");
        assert_eq!(human(1234.0, "ns"), "1.23 µs");
        assert_eq!(human(12_600_000.0, "ns"), "12.6 ms");
        assert_eq!(human(3.1e6, "1/s"), "3.10 M/s");
        assert_eq!(human(5.04e9, "B/s"), "5.04 GB/s");
        assert_eq!(human(4.2, "GB/s"), "4.20 GB/s");
        assert_eq!(human(0.0021, "calls"), "0.0021 calls");
        assert_eq!(human(0.0, "ns"), "0 ns");
    }

    #[test]
    fn invalid_rows_are_refused() {
        let row = |change: (&str, &str)| {
            let row = r#"{"id": "a", "unit": "ns", "better": "lower", "ours": 1, "spread": null,
                          "limit": 1, "peers": {}}"#;
            assert!(row.contains(change.0), "{}", change.0);
            Figures::read(&format!(r#"{{"machine": {{}}, "rows": [{}]}}"#, row.replace(change.0, change.1)))
        };
        assert!(row(("1", "2")).is_ok());
        for change in [
            (r#""id": "a""#, r#""id": """#),
            ("lower", "less"),
            (r#""ours": 1"#, r#""ours": "1""#),
            (r#""ours": 1"#, r#""ours": -1"#),
            (r#", "spread": null"#, ""),
            (r#""peers": {}"#, r#""peers": {"x": "fast"}"#),
            (r#""peers": {}"#, r#""peers": []"#),
        ] {
            assert!(row(change).is_err(), "{change:?}");
        }
        assert!(Figures::read("{").is_err());
        assert!(Figures::read(r#"{"rows": []}"#).is_err());
    }
}
