//! Texts of errors that a child sends, bounded in length and number.

/// Maximum length of a text that a child sends, in bytes. The rest is cut.
const TEXT: usize = 64 << 10;
/// Maximum length of a chain of sources that a child sends.
const CHAIN: usize = 32;

/// Cuts a text that is too long to send, at a character boundary.
pub(crate) fn cut(mut text: String) -> String {
    if text.len() > TEXT {
        let end = (0..=TEXT).rfind(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push_str(" … (cut)");
    }
    text
}

/// Returns the sources of an error, outermost first.
pub(crate) fn sources(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    std::iter::successors(error.source(), |error| error.source())
        .take(CHAIN)
        .map(|error| cut(error.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = cut("ä".repeat(TEXT));
        assert!(text.len() < TEXT + 20 && text.ends_with("(cut)"));
    }
}
