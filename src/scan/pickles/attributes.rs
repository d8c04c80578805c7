//! Decides which states BUILD may set on an understood object.
//!
//! **No understood object has an attribute that can be called.** Unpicklers and the code of classes look methods up on objects
//! (`__setstate__`, `extend`, `keys`), and an attribute of the object comes before the method of its class. Where attributes are
//! data, such a lookup finds the methods of the class only. So a second BUILD, APPENDS or `_rebuild_from_type_v2` calls nothing
//! that the file chooses.

use super::understanding::Understanding;
use crate::pickle::{Handle, Value};
use crate::scan::known_classes::State;

/// What is wrong with a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The class does not write a state of this form.
    Form,
    /// The attribute with this name is looked up by unpicklers or by Python itself.
    Name(Handle),
    /// The attribute with this name, or this item of a tuple, can be called.
    Callable(Handle),
}

/// What a state is set on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// The result of a call that the loader interprets: a container, a tensor.
    Loader,
    /// An object of a known class.
    Object(State),
    /// An object of a class that is not understood, but may be allowed.
    Unknown,
}

/// The methods that unpicklers look up on an object to grow it (`Modules/_pickle.c`: `do_append`, `load_additems`).
const GROWING_METHODS: [&[u8]; 3] = [b"append", b"extend", b"add"];

impl Understanding<'_> {
    /// What is wrong with a state of `target`.
    pub(super) fn problem_of(&mut self, state: Handle, target: Target) -> Option<Problem> {
        if let Some(&problem) = self.problems.get(&(state, target)) {
            return problem;
        }
        let problem = self.find_problem(state, target);
        self.problems.insert((state, target), problem);
        problem
    }

    fn find_problem(&mut self, state: Handle, target: Target) -> Option<Problem> {
        match (target, self.values.get(state)) {
            (Target::Object(State::Checked), _) | (Target::Loader | Target::Unknown, Value::None) => None,
            (Target::Object(State::Attributes), Value::Dict(pairs)) => self.attributes(pairs, ""),
            (Target::Object(State::AttributesAnd(function)), Value::Dict(pairs)) => {
                self.attributes(pairs, function)
            }
            (Target::Object(State::Values), Value::Tuple(items)) => {
                items.iter().find_map(|&item| self.may_be_called(item).then_some(Problem::Callable(item)))
            }
            (Target::Object(State::Rnn), Value::Dict(pairs)) => {
                self.attributes(pairs, "").or_else(|| self.rnn(pairs))
            }
            (Target::Object(State::Array), Value::Dict(pairs)) => self.array(pairs),
            (Target::Loader, Value::Dict(pairs)) => self.attributes(pairs, ""),
            (Target::Loader, Value::Tuple(items)) => {
                items.iter().find_map(|&item| match self.values.get(item) {
                    Value::Dict(_) => self.problem_of(item, target),
                    _ => self.may_be_called(item).then_some(Problem::Callable(item)),
                })
            }
            (Target::Unknown, Value::Dict(pairs)) => self.replaced_methods(pairs),
            (Target::Unknown, Value::Tuple(items)) => {
                items.iter().find_map(|&item| match self.values.get(item) {
                    Value::Dict(_) => self.problem_of(item, target),
                    _ => None,
                })
            }
            (Target::Unknown, _) => None,
            _ => Some(Problem::Form),
        }
    }

    /// What is wrong with attributes; nothing looks up the one named `function`, so it may be one.
    fn attributes(&self, pairs: &[(Handle, Handle)], function: &str) -> Option<Problem> {
        pairs.iter().find_map(|&(key, value)| {
            let Value::Str(name) = self.values.get(key) else { return Some(Problem::Form) };
            let is_function = name.as_bytes() == function.as_bytes();
            if is_special(name.as_bytes()) {
                Some(Problem::Name(key))
            } else if !is_function && self.may_be_called(value) {
                Some(Problem::Callable(key))
            } else {
                None
            }
        })
    }

    /// The first attribute that an unpickler would call in place of a method of the class.
    fn replaced_methods(&self, pairs: &[(Handle, Handle)]) -> Option<Problem> {
        pairs.iter().find_map(|&(key, value)| {
            let Value::Str(name) = self.values.get(key) else { return None };
            let name = name.as_bytes();
            let is_method = is_special(name) || GROWING_METHODS.contains(&name);
            (is_method && self.may_be_called(value)).then_some(Problem::Name(key))
        })
    }

    /// What is wrong with the attributes of `torch.nn.LSTM` and the like: its `__setstate__` finds the weights by their names.
    fn rnn(&mut self, pairs: &[(Handle, Handle)]) -> Option<Problem> {
        pairs.iter().find_map(|&(key, value)| {
            let Value::Str(name) = self.values.get(key) else { return None };
            let has_form = match name.as_bytes() {
                b"all_weights" | b"_all_weights" => self.is_list_of(value, |understanding, item| {
                    understanding.is_list_of(item, |understanding, item| understanding.is_text(item))
                }),
                b"_flat_weights_names" => {
                    self.is_list_of(value, |understanding, item| understanding.is_text(item))
                }
                b"_flat_weights" => matches!(self.values.get(value), Value::List(_)),
                _ => true,
            };
            (!has_form).then_some(Problem::Form)
        })
    }

    /// What is wrong with the attributes of joblib's wrapper of an array (joblib/numpy_pickle.py: `NumpyArrayWrapper`).
    fn array(&self, pairs: &[(Handle, Handle)]) -> Option<Problem> {
        let value_of = |handle| self.values.get(handle);
        pairs.iter().find_map(|&(key, value)| {
            let Value::Str(name) = value_of(key) else { return Some(Problem::Form) };
            let has_form = match name.as_bytes() {
                b"subclass" => self.is_named(value, "numpy", "ndarray"),
                b"dtype" => self.is_dtype(value),
                b"shape" => match value_of(value) {
                    Value::Tuple(sizes) => sizes.iter().all(|&size| matches!(value_of(size), Value::Int(_))),
                    _ => false,
                },
                b"order" => self.is_text(value),
                b"allow_mmap" => matches!(value_of(value), Value::Bool(_)),
                b"numpy_array_alignment_bytes" => matches!(value_of(value), Value::Int(_) | Value::None),
                _ => false,
            };
            (!has_form).then_some(Problem::Form)
        })
    }

    fn is_text(&self, value: Handle) -> bool {
        matches!(self.values.get(value), Value::Str(_))
    }

    /// Whether a value is a list whose items all pass a test. A list is tested once, with the first test that is asked for: neither
    /// names in place of lists of names nor the reverse does harm.
    fn is_list_of(&mut self, list: Handle, test: fn(&mut Self, Handle) -> bool) -> bool {
        if let Some(&passed) = self.name_lists.get(&list) {
            return passed;
        }
        let Value::List(items) = self.values.get(list) else { return false };
        // A list that contains itself is not a list of names.
        self.name_lists.insert(list, false);
        let passed = !items.is_empty() && items.iter().all(|&item| test(self, item));
        self.name_lists.insert(list, passed);
        passed
    }

    /// Whether a value may be callable: a class, a function, or an object of a class that defines `__call__` or is not understood.
    pub(super) fn may_be_called(&self, value: Handle) -> bool {
        match self.values.get(value) {
            Value::Global(id) => !self.known.is_plain_value(self.values, id),
            Value::Call(id) => match self.object_of(id) {
                Some(object) => object.callable,
                None => !self.known.is_known_call(id),
            },
            Value::PersistentId(pid) => self.module_class(pid).is_some(),
            _ => false,
        }
    }
}

/// Whether a name is one of Python's own: `__setstate__`, `__class__`, `__torch_function__`.
fn is_special(name: &[u8]) -> bool {
    name.starts_with(b"__") && name.ends_with(b"__")
}

impl Problem {
    /// The problem, as the end of a sentence about an object.
    pub(super) fn text(self, values: &crate::pickle::Values) -> String {
        let name = |handle| crate::scan::preview::value(values, handle);
        match self {
            Problem::Form => "gets a state of a form that its class does not write".to_owned(),
            Problem::Name(key) => format!(
                "gets the attribute {}, which is looked up and called in place of a method",
                name(key)
            ),
            Problem::Callable(key) => {
                format!("gets {} as an attribute that can be called in place of a method", name(key))
            }
        }
    }
}
