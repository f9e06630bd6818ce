// Marks what a shared library of MiniRay exports: all that a public header declares, and nothing else.
#pragma once

/// Written before the name of a namespace: what this block declares can be used from outside the library.
#define MINIRAY_API [[gnu::visibility("default")]]
