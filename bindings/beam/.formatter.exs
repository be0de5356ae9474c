# SPDX-License-Identifier: MIT
[
  inputs: ["{mix,.formatter}.exs", "{lib,test}/**/*.{ex,exs}"],
  line_length: 100,
  locals_without_parens: [nif: 1]
]
