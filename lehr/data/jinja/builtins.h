// What a template can call: filters, tests, methods of strings and dicts, global functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lehr/data/jinja/value.h"

namespace lehr::data::jinja {

using Filter = Value (*)(const Value& input, const Arguments& arguments);
using Test = bool (*)(const Value& input, const Arguments& arguments);

/// The filter or test of that name, or null.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);

/// The method `name` of `object` as a function; nothing if Python has no such method. A method that Python has and this
/// interpreter has not is a function that refuses to be called.
std::optional<Value> find_method(const Value& object, const std::string& name);

/// namespace, dict, range, raise_exception: what every template knows beside its variables.
const Dict& global_functions();

/// object.name and object[key] as Jinja looks them up; undefined when there is nothing.
Value look_up_attribute(const Value& object, const std::string& name);
Value look_up_item(const Value& object, const Value& key);

/// Arguments by the names of parameters; those not given are undefined. Refuses what does not fit; `what` is the name
/// of the function, for messages.
List bound(const Arguments& arguments, const std::vector<std::string>& parameters, std::string_view what);

}  // namespace lehr::data::jinja
