//! Aligned tables in plain text.

/// Formats rows as aligned columns. Columns are left-aligned unless `right` lists them.
pub(crate) fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let gap = " ".repeat(widths[column] - cell.chars().count());
            let (before, after) =
                if right.contains(&column) { (gap, String::new()) } else { (String::new(), gap) };
            line += &format!("{before}{cell}{after}  ");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_table_columns_are_aligned() {
        let rows = [vec!["a".to_owned(), "10 µs".to_owned()], vec!["long".to_owned(), "9 s".to_owned()]];
        assert_eq!(table(&rows, &[1]), "a     10 µs\nlong    9 s\n");
    }
}
