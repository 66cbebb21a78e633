#pragma once

// Catch2 v2 or v3. Files that use torch include it before this: torch defines CHECK too, and the later one counts.
#undef CHECK

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
