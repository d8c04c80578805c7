//! The names that quantizers give to codes and to what belongs to them.

/// Words of which one is in each name of scales, zero points and the like, alone or in a longer word (`qzeros`).
const SCALE_WORDS: &[&str] = &["scale", "zero", "absmax", "amax", "codebook", "bitmask"];

/// Words for activations and caches, whose scales are none of a weight.
const ACTIVATION_WORDS: &[&str] = &["input", "activation", "act", "output", "q", "k", "v", "kv"];

/// The longest text that is added to the name of codes for that of their scales.
const SUFFIX_MAX_BYTES: usize = 48;

/// The levels of names below a tensor: `weight.quant_state.bitsandbytes__nf4`.
const LEVELS_BELOW: usize = 3;

/// The last component of a name.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'n> {
    /// The whole name.
    name: &'n str,
    /// Where the component begins.
    start: usize,
    /// Whether it is named as scales or zero points.
    pub(super) says_scale: bool,
}

/// The names above a name, from the nearest on.
pub(super) fn ancestors(name: &str) -> impl Iterator<Item = &str> {
    name.rmatch_indices('.').take(LEVELS_BELOW).map(|(dot, _)| &name[..dot])
}

/// Whether a name is that of a description of a quantization.
pub(super) fn states_quantization(name: &str) -> bool {
    name.contains("quant_state")
}

fn is_scale_word(word: &str) -> bool {
    word.eq_ignore_ascii_case("scb") || SCALE_WORDS.iter().any(|scale| word.contains(scale))
}

impl<'n> Leaf<'n> {
    /// The last component of a name.
    pub(super) fn of(name: &'n str) -> Leaf<'n> {
        let start = name.rfind('.').map_or(0, |dot| dot + 1);
        let says_scale = name[start..].split('_').any(is_scale_word);
        Leaf { name, start, says_scale }
    }

    /// The path of the module.
    pub(super) fn module(&self) -> &'n str {
        &self.name[..self.start]
    }

    fn text(&self) -> &'n str {
        &self.name[self.start..]
    }

    fn words(&self) -> impl Iterator<Item = &'n str> {
        self.text().split('_').filter(|word| !word.is_empty())
    }

    /// Whether it is named as a weight of several: `weight`, `qweight`, `w1_weight`, `weight_packed`.
    pub(super) fn has_weight(&self) -> bool {
        self.words().any(|word| word.ends_with("weight"))
    }

    /// Whether it is named as the one weight of its module: `weight`, `qweight`, `weight_packed`.
    pub(super) fn is_weight(&self) -> bool {
        self.words().next().is_some_and(|word| word.ends_with("weight"))
    }

    pub(super) fn has_blocks(&self) -> bool {
        self.text().ends_with("_blocks")
    }

    /// Whether it is what ComfyUI marks a checkpoint of scaled fp8 with: a tensor of two numbers or none, which mean nothing.
    pub(super) fn is_marker(&self) -> bool {
        self.text() == "scaled_fp8"
    }

    /// Whether it is named as codes of GPTQ, which are in words of any size.
    pub(super) fn is_words(&self) -> bool {
        self.text() == "qweight"
    }

    pub(super) fn has_bias(&self) -> bool {
        self.words().any(|word| word == "bias")
    }

    /// The names that this one adds a few words of scales to, from the longest on.
    pub(super) fn prefixes(self) -> impl Iterator<Item = &'n str> {
        let name = self.name;
        let min = (self.start + 1).max(name.len().saturating_sub(SUFFIX_MAX_BYTES));
        let ends = name.rmatch_indices('_').map(|(end, _)| end).take_while(move |&end| end >= min);
        ends.filter(move |&end| name[end..].split('_').any(is_scale_word)).map(move |end| &name[..end])
    }

    /// The name up to the last `_` of this component; `None` if it is one word.
    pub(super) fn without_last_word(&self) -> Option<&'n str> {
        let end = self.name.rfind('_').filter(|&end| end > self.start)?;
        Some(&self.name[..end])
    }

    /// The name up to the first word of a scale; `None` if this component begins with it.
    pub(super) fn stem(&self) -> Option<&'n str> {
        let mut end = self.start;
        for word in self.text().split('_').take_while(|word| !is_scale_word(word)) {
            end += word.len() + 1;
        }
        let stem = self.name.get(..end.checked_sub(1)?)?;
        let has_words = stem.get(self.start..).is_some_and(|text| text.bytes().any(|byte| byte != b'_'));
        has_words.then_some(stem)
    }

    /// The part that it adds to the name of codes, or all of it.
    fn beyond(&self, codes: &Leaf<'_>) -> &'n str {
        let rest = self.text().strip_prefix(codes.text()).and_then(|rest| rest.strip_prefix('_'));
        rest.unwrap_or(self.text())
    }

    /// Whether it is named as the scales by which fp8 codes are multiplied.
    pub(super) fn multiplies(&self, codes: &Leaf<'_>) -> bool {
        let (text, beyond) = (self.text(), self.beyond(codes));
        match beyond.len() == text.len() {
            true => codes.text() == "weight" && ["scale", "scale_weight", "qscale_weight"].contains(&text),
            false => ["scale", "scale_inv"].contains(&beyond),
        }
    }

    /// Whether it is named as a scale of the activations that are multiplied with the codes, or of a cache.
    pub(super) fn is_of_activations(&self, codes: &Leaf<'_>) -> bool {
        let mut words = self.beyond(codes).split('_');
        self.says_scale && words.any(|word| ACTIVATION_WORDS.contains(&word))
    }
}
