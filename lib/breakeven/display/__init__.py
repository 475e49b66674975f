"""How figures and rows are shown: plots with alt text, tables, sliders. Measures and judges nothing."""
